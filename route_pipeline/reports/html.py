"""The report as one HTML page, with its pictures inside: nothing is fetched when it is looked at."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from route_pipeline.reports.comparison import Comparison
from route_pipeline.reports.data import BROKERS, QUEUES, TOPICS, ReportData, Series

WIDTH_INCHES, HEIGHT_INCHES, DPI = 9.0, 3.2, 110

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 64em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border-bottom: 1px solid #ddd; padding: .25em .8em; text-align: left; overflow-wrap: anywhere; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; }
.lost { color: #b00; }
"""


def html_report(comparison: Comparison, data: ReportData) -> str:
    """The page.

    Args:
        comparison: The name servers as they are known now.
        data: The numbers over time.
    """
    sections = [
        _section("Name servers", _namesrv_table(comparison)),
        *(_section(title, _lines(title, data.over_time[what])) for title, what in _TITLES),
        _section("Changes by broker group", _bars([(name, count) for name, count in data.churn], "ended versions")),
        _section(
            "Removals by reason",
            _bars([(f"{table}: {reason}", count) for table, reason, count in data.removals], "removals"),
        ),
        _section("Time to agreement between name servers", _convergence(data)),
        _section("Largest topics", _table(("topic", "broker groups", "read queues"), data.largest_topics)),
        _section("Broker groups without a master", _table(("name server", "broker group"), data.without_master)),
        _section("Topics without a writable queue", _table(("name server", "topic"), data.not_writable)),
    ]
    head = f"<meta charset=utf-8><title>Routes</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body><h1>Routes</h1>{''.join(sections)}</body></html>\n"


_TITLES = (
    ("Topics over time", TOPICS),
    ("Write queues over time", QUEUES),
    ("Live brokers over time", BROKERS),
)


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _namesrv_table(comparison: Comparison) -> str:
    headings = ("name server", "epoch", "revision", "ingested at (UTC)", "topics", "queue rows", "brokers")
    rows = [
        (
            one.namesrv + (" (lost)" if one.lost else ""),
            one.epoch,
            one.revision,
            one.ingested_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
            one.topics,
            one.queue_rows,
            one.brokers,
        )
        for one in comparison.namesrvs
    ]
    found = ", ".join(f"{one.table} {one.count:,}" for one in comparison.differences)
    verdict = f"The name servers differ: {found}." if found else "The name servers do not differ."
    return f"{_table(headings, rows)}<p>{escape(verdict)}</p>"


def _lines(title: str, series: Series) -> str:
    if not series:
        return "<p>None.</p>"

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
        axes.set_xlabel("time, UTC, by the clock of each name server")
        axes.legend(loc="best")

    return _picture(title, draw)


def _bars(rows: Sequence[tuple[str, int]], unit: str) -> str:
    if not rows:
        return "<p>None.</p>"

    def draw(axes: Axes) -> None:
        names = [name for name, _ in rows][::-1]
        axes.barh(names, [count for _, count in rows][::-1], color="tab:blue")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(unit)

    return _picture(unit, draw, height=1.0 + 0.28 * len(rows))


def _convergence(data: ReportData) -> str:
    lasting = f"<p>{data.open_disagreements:,} disagreements last.</p>"
    if not any(data.convergence.values()):
        return f"<p>No disagreement has ended.</p>{lasting}"

    def draw(axes: Axes) -> None:
        names = {"wall": "clocks of the name servers", "ingest": "time of the ingest"}
        for by, seconds in data.convergence.items():
            if seconds:
                share = [(number + 1) / len(seconds) for number in range(len(seconds))]
                axes.step(sorted(seconds), share, where="post", label=f"by the {names[by]} ({len(seconds):,})")
        axes.set_xscale("symlog", linthresh=0.01)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("seconds until they agreed again")
        axes.set_ylabel("share of disagreements")
        axes.legend(loc="best")

    return _picture("time to agreement", draw) + lasting


def _picture(title: str, draw: Callable[[Axes], None], height: float = HEIGHT_INCHES) -> str:
    """A picture inside the page. Names come from others, so that they are not taken for mathematics."""
    with mpl.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        draw(axes)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=DPI)
    encoded = base64.b64encode(image.getvalue()).decode("ascii")
    return f'<p><img alt="{escape(title)}" src="data:image/png;base64,{encoded}"></p>'


def _table(headings: Iterable[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"<td class=number>{value:,}</td>"
    return f"<td>{escape(str(value))}</td>"
