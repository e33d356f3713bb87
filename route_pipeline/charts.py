"""The plots of the report's page: SVG inside the page, with a title and units. Names come from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from math import log10

from route_pipeline.report_data import Series

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, LEGEND = 820, 260, 70, 28, 44, 18
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
_TICKS = 5

Line = Sequence[tuple[float, float]]
"""Points of a line, from 0 to 1 in both directions."""


def lines(title: str, unit: str, series: Series) -> str:
    """Numbers over time, a line for each name server; an empty text without numbers."""
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    first, last = (moment.timestamp() for moment in (min(points)[0], max(points)[0]))
    width, highest = max(last - first, 1e-6), max(1, *(value for _, value in points))
    drawn = {
        name: [((moment.timestamp() - first) / width, value / highest) for moment, value in line]
        for name, line in series.items()
    }
    times = [
        (tick / (_TICKS - 1), f"{datetime.fromtimestamp(first + width * tick / (_TICKS - 1), UTC):%m-%d %H:%M}")
        for tick in range(_TICKS)
    ]
    heights = [(number / highest, f"{number:,}") for number in sorted({0, round(highest / 2), highest})]
    return _chart(title, ("time (UTC, by the clock of each name server)", unit), times, heights, _stepped(drawn))


def shares(title: str, seconds_by: Mapping[str, Sequence[float]]) -> str:
    """Which share of the disagreements was over after how many seconds; the scale is logarithmic from 0.01 s on."""
    longest = max((max(seconds) for seconds in seconds_by.values() if seconds), default=None)
    if longest is None:
        return ""
    decades = max(1.0, log10(max(longest, 0.1) / 0.01))

    def along(seconds: float) -> float:
        return max(0.0, log10(max(seconds, 0.01) / 0.01)) / decades

    drawn = {
        f"{name} ({len(seconds):,})": [
            (0.0, 0.0),
            *((along(one), (number + 1) / len(seconds)) for number, one in enumerate(seconds)),
            (1.0, 1.0),
        ]
        for name, seconds in seconds_by.items()
        if seconds
    }
    ticks = [(along(10.0**power), f"{10.0**power:g}") for power in range(-2, int(log10(max(longest, 0.1))) + 1)]
    heights = [(share, f"{share:.0%}") for share in (0, 0.5, 1)]
    return _chart(title, ("time until they agreed again (s)", "disagreements"), ticks, heights, _stepped(drawn))


def bars(title: str, unit: str, rows: Sequence[tuple[str, int]]) -> str:
    """Numbers of things with names, the largest on top."""
    if not rows:
        return ""
    most, wide, left = max(number for _, number in rows), WIDTH - 380, 300
    drawn = "".join(
        f"<text x={left - 6} y={TOP + 22 * place + 15} text-anchor=end>{escape(name[:44])}</text>"
        f"<rect x={left} y={TOP + 22 * place + 3} width={wide * number / most:.1f} height=16 fill={_COLOURS[0]} />"
        f"<text x={left + wide * number / most + 6:.1f} y={TOP + 22 * place + 15}>{number:,}</text>"
        for place, (name, number) in enumerate(rows)
    )
    height = TOP + 22 * len(rows) + 24
    return _picture(title, height, f"{drawn}<text x={left} y={height - 6}>{escape(unit)}</text>")


def _stepped(drawn: Mapping[str, Line]) -> dict[str, Line]:
    """Lines that keep a value until the next one, and continue to the right edge."""
    stepped: dict[str, Line] = {}
    for name, line in drawn.items():
        corners = [line[0]]
        for (_, before), (along, value) in pairwise(line):
            corners += [(along, before), (along, value)]
        stepped[name] = [*corners, (1.0, line[-1][1])]
    return stepped


Ticks = Sequence[tuple[float, str]]


def _chart(title: str, axes: tuple[str, str], across: Ticks, up: Ticks, drawn: Mapping[str, Line]) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - 20

    def at(along: float, high: float) -> tuple[float, float]:
        return LEFT + along * (right - LEFT), bottom - high * (bottom - TOP)

    parts = []
    for high, label in up:
        y = at(0, high)[1]
        parts.append(f"<path d='M{LEFT} {y:.1f}H{right}' stroke=#ddd />")
        parts.append(f"<text x={LEFT - 6} y={y + 4:.1f} text-anchor=end>{label}</text>")
    parts += [f"<text x={at(one, 0)[0]:.1f} y={bottom + 16} text-anchor=middle>{label}</text>" for one, label in across]
    parts.append(f"<text x={LEFT} y={bottom + 36}>{escape(axes[0])}</text>")
    parts.append(f"<text x=4 y={TOP - 8}>{escape(axes[1])}</text>")
    for number, (name, line) in enumerate(drawn.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in line)
        # Lines that lie on one another: the later ones are thinner.
        width = max(1, 3 - number)
        parts.append(f"<polyline points='{points}' fill=none stroke={colour} stroke-width={width} />")
        parts.append(f"<text x={LEFT + 10} y={HEIGHT + 12 + LEGEND * number} fill={colour}>{escape(name)}</text>")
    return _picture(title, HEIGHT + LEGEND * len(drawn) + 6, "".join(parts))


def _picture(title: str, height: int, content: str) -> str:
    return (
        f"<div class=wide><h3>{escape(title)}</h3>"
        f"<svg viewBox='0 0 {WIDTH} {height}' width={WIDTH} role=img aria-label='{escape(title)}'>{content}</svg></div>"
    )
