"""The plots of the report's page, each a picture inside the page, with a title and units."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from route_pipeline.reports.data import Series

WIDTH_INCHES, HEIGHT_INCHES, DPI = 8.0, 3.2, 110

_CLOCKS = {"wall": "clocks of the name servers", "ingest": "time of the ingest"}


def lines(title: str, unit: str, series: Series) -> str:
    """Numbers over time, a line for each name server."""

    def draw(axes: Axes) -> None:
        for number, (name, points) in enumerate(series.items()):
            times, values = zip(*points, strict=True)
            # Lines of name servers that agree lie on one another: the later ones are thinner, and dashed.
            style: dict[str, Any] = {"linewidth": max(1.0, 3.0 - number), "linestyle": "-" if number == 0 else "--"}
            axes.step(times, values, where="post", label=name, marker="." if len(points) < 3 else "", **style)
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("time (UTC, by the clock of each name server)")
        axes.set_ylabel(unit)
        axes.legend(loc="best")

    return _picture(title, draw) if series else ""


def bars(title: str, unit: str, rows: Sequence[tuple[str, int]]) -> str:
    """Numbers of things with names, the largest on top."""

    def draw(axes: Axes) -> None:
        names = [name for name, _ in rows][::-1]
        axes.barh(names, [count for _, count in rows][::-1], color="tab:blue")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(unit)

    return _picture(title, draw, height=1.3 + 0.28 * len(rows)) if rows else ""


def shares(title: str, seconds_by: Mapping[str, Sequence[float]]) -> str:
    """Which share of the disagreements was over after how many seconds."""

    def draw(axes: Axes) -> None:
        for by, seconds in seconds_by.items():
            if seconds:
                share = [100 * (number + 1) / len(seconds) for number in range(len(seconds))]
                axes.step(sorted(seconds), share, where="post", label=f"by the {_CLOCKS[by]} ({len(seconds):,})")
        axes.set_xscale("symlog", linthresh=0.01)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
        axes.set_xlim(left=0)
        axes.set_ylim(0, 102)
        axes.set_xlabel("time until they agreed again (s)")
        axes.set_ylabel("disagreements (%)")
        axes.legend(loc="best")

    return _picture(title, draw) if any(seconds_by.values()) else ""


def _picture(title: str, draw: Callable[[Axes], None], height: float = HEIGHT_INCHES) -> str:
    """A picture inside the page. Names come from others, so that they are not taken for mathematics."""
    with mpl.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.set_title(title, loc="left")
        draw(axes)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=DPI)
    encoded = base64.b64encode(image.getvalue()).decode("ascii")
    return f'<div class=wide><img alt="{escape(title)}" src="data:image/png;base64,{encoded}"></div>'
