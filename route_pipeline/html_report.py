"""The report as one HTML page with its plots inside."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from route_pipeline.queries import LastDay, LatestState
from route_pipeline.report_data import BROKERS, QUEUES, TOPICS, ReportData, Series

# The report as one HTML page, with its pictures inside: nothing is fetched when it is looked at.
#
# It opens with what a person asks first; what explains it comes after.

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5em auto; max-width: 62em; padding: 0 1em; color: #222; }
h2 { margin: 1.8em 0 .3em; }
p { margin: .4em 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6em 0; }
th, td { border-bottom: 1px solid #ddd; padding: .25em 1.2em .25em 0; text-align: left; vertical-align: top; }
td { overflow-wrap: break-word; max-width: 26em; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.time { white-space: nowrap; }
img { display: block; max-width: 100%; min-width: 34em; }
.answer { font-size: 1.1em; }
.bad { color: #b00; }
@media (max-width: 600px) { td { white-space: nowrap; max-width: none; } }
"""


def html_report(latest: LatestState, data: ReportData) -> str:
    day = data.last_day
    sections = [
        _section("What changed in the last day", _changed(day)),
        _section("Where name servers disagree", _disagree(latest)),
        _section("Who flapped in the last day", _flapped(day)),
        _section("Name servers", _namesrv_table(latest)),
        _section(
            "Over time",
            _or_none("".join(lines(title, what, data.over_time[what]) for title, what in _TITLES)),
        ),
        _section(
            "Changes by broker group",
            _or_none(bars("Versions of rows that ended, by broker group", "ended versions", data.churn)),
        ),
        _section(
            "Removals by reason",
            _or_none(
                bars(
                    "Rows that were removed, by table and reason",
                    "removals",
                    [(f"{table}: {reason}", count) for table, reason, count in data.removals],
                )
            ),
        ),
        _section(
            "Time to agreement between name servers",
            shares("Disagreements that had ended, by their length", data.convergence)
            or "<p>No disagreement has ended.</p>",
        ),
    ]
    head = (
        "<meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>Routes</title><style>{_STYLE}</style>"
    )
    as_of = f"<p>As of {_time(day.until)} UTC, when the log was written last.</p>"
    body = f"<h1>Routes</h1>{as_of}{''.join(sections)}"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>\n"


_TITLES = (
    ("Topics over time", TOPICS),
    ("Write queues over time", QUEUES),
    ("Live brokers over time", BROKERS),
)


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _answer(text: str, *, bad: bool = False) -> str:
    return f"<p class='answer{' bad' if bad else ''}'>{escape(text)}</p>"


def _or_none(content: str) -> str:
    return content or "<p>None.</p>"


def _changed(day: LastDay) -> str:
    if not day.counts:
        return _answer("Nothing.")
    counts = _table(("what", "came", "changed", "went"), day.counts)
    rows = [(one.at, one.table_name, one.key, one.kind, one.reason, ", ".join(one.namesrvs)) for one in day.latest]
    latest = _table(("last at (UTC)", "what", "key", "it", "why", "name servers"), rows)
    return f"{counts}<p>The latest:</p>{latest}"


def _disagree(latest: LatestState) -> str:
    if len(latest.namesrvs) < 2:
        return _answer("There is one name server, and nothing to compare it with.")
    if not latest.open_disagreements:
        return _answer(f"Nowhere: the {len(latest.namesrvs)} name servers agree.")
    rows = [(one.since, one.table_name, one.key, one.sides) for one in latest.disagreements]
    more = latest.open_disagreements - len(rows)
    return (
        _answer(f"On {latest.open_disagreements:,} rows.", bad=True)
        + _table(("since (UTC, time of the ingest)", "what", "key", "who has it"), rows)
        + (f"<p>And {more:,} more.</p>" if more else "")
    )


def _flapped(day: LastDay) -> str:
    if not day.flaps:
        return _answer("Nobody: no broker went away twice.")
    rows = [(one.key, one.times, one.last, ", ".join(one.reasons), ", ".join(one.namesrvs)) for one in day.flaps]
    return _table(("broker", "times it went", "last at (UTC)", "why", "name servers"), rows)


def _namesrv_table(latest: LatestState) -> str:
    headings = ("name server", "epoch", "revision", "ingested at (UTC)", "topics", "queue rows", "brokers")
    rows = [
        (
            one.namesrv + (" (lost)" if one.lost else ""),
            one.epoch,
            one.revision,
            one.ingested_at,
            one.topics,
            one.queue_rows,
            one.brokers,
        )
        for one in latest.namesrvs
    ]
    return _table(headings, rows)


def _table(headings: Iterable[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(
        f"<th class=number>{escape(heading)}</th>" if isinstance(value, int) else f"<th>{escape(heading)}</th>"
        for heading, value in zip(headings, rows[0], strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"<td class=number>{value:,}</td>"
    if isinstance(value, datetime):
        return f"<td class=time>{_time(value)}</td>"
    return f"<td>{escape(str(value))}</td>"


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


# The plots of the report's page, each a picture inside the page, with a title and units.

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
