"""The plots of the report's page: SVG inside the page, with a title and units. Names come from others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from route_pipeline.questions import Row
from route_pipeline.report_data import Series

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, LEGEND = 820, 260, 70, 28, 44, 18
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


def lines(title: str, unit: str, series: Series) -> str:
    """Numbers over time, a line for each name server that keeps a value until the next one."""
    points = [point for line in series.values() for point in line]
    first, last = min(points)[0].timestamp(), max(points)[0].timestamp()
    highest, bottom, right = max(1, *(value for _, value in points)), HEIGHT - BOTTOM, WIDTH - 20

    def x(at: float) -> str:
        return f"{LEFT + (at - first) / max(last - first, 1e-6) * (right - LEFT):.1f}"

    def y(value: float) -> str:
        return f"{bottom - value / highest * (bottom - TOP):.1f}"

    parts = [
        f"<text x={LEFT} y={bottom + 36}>time (UTC, by the clock of each name server)</text>",
        f"<text x=4 y={TOP - 8}>{escape(unit)}</text>",
    ]
    for number in sorted({0, round(highest / 2), highest}):
        parts.append(f"<path d='M{LEFT} {y(number)}H{right}' stroke=#ddd />")
        parts.append(f"<text x={LEFT - 6} y={y(number)} dy=4 text-anchor=end>{number:,}</text>")
    for at in (first + (last - first) * tick / 4 for tick in range(5)):
        label = f"{datetime.fromtimestamp(at, UTC):%m-%d %H:%M}"
        parts.append(f"<text x={x(at)} y={bottom + 16} text-anchor=middle>{label}</text>")
    for number, (name, line) in enumerate(series.items()):
        steps = "".join(f"H{x(moment.timestamp())}V{y(value)}" for moment, value in line[1:])
        path = f"M{x(line[0][0].timestamp())},{y(line[0][1])}{steps}H{right}"
        colour = _COLOURS[number % len(_COLOURS)]
        # Lines that lie on one another: the later ones are thinner.
        parts.append(f"<path d='{path}' fill=none stroke={colour} stroke-width={max(1, 3 - number)} />")
        parts.append(f"<text x={LEFT + 10} y={HEIGHT + 12 + LEGEND * number} fill={colour}>{escape(name)}</text>")
    return _picture(title, HEIGHT + LEGEND * len(series) + 6, "".join(parts))


def bars(title: str, unit: str, rows: Sequence[Row]) -> str:
    """Numbers of things with names, the largest on top; an empty text without rows."""
    if not rows:
        return ""
    wide, left, height = WIDTH - 380, 300, TOP + 22 * len(rows) + 24
    parts = []
    for place, row in enumerate(rows):
        name, number, y = row["name"], row["number"], TOP + 22 * place + 15
        length = wide * number / max(each["number"] for each in rows)
        parts.append(f"<text x={left - 6} y={y} text-anchor=end>{escape(name[:44])}</text>")
        parts.append(f"<rect x={left} y={y - 12} width={length:.1f} height=16 fill={_COLOURS[0]} />")
        parts.append(f"<text x={left + length + 6:.1f} y={y}>{number:,}</text>")
    return _picture(title, height, f"{''.join(parts)}<text x={left} y={height - 6}>{escape(unit)}</text>")


def _picture(title: str, height: int, content: str) -> str:
    return (
        f"<div class=wide><h3>{escape(title)}</h3>"
        f"<svg viewBox='0 0 {WIDTH} {height}' width={WIDTH} role=img aria-label='{escape(title)}'>{content}</svg></div>"
    )
