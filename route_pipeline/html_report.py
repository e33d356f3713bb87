"""The report as one HTML page, with its plots inside: nothing is fetched when it is looked at.

It opens with what a person asks first; what explains it comes after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from route_pipeline.charts import bars, lines
from route_pipeline.report_data import Charts, ReportData, sides_of

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5em auto; max-width: 62em; padding: 0 1em; color: #222; }
h2 { margin: 1.8em 0 .3em; }
h3 { font-size: 1em; margin: 1em 0 0; }
p { margin: .4em 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6em 0; }
th, td { border-bottom: 1px solid #ddd; padding: .25em 1.2em .25em 0; text-align: left; vertical-align: top; }
td { overflow-wrap: break-word; max-width: 26em; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.time { white-space: nowrap; }
svg { display: block; font-size: 12px; }
.answer { font-size: 1.1em; }
.bad { color: #b00; }
@media (max-width: 600px) { td { white-space: nowrap; max-width: none; } }
"""


def html_report(data: ReportData, charts: Charts) -> str:
    over_time = [lines(f"{what.capitalize()} over time", what, series) for what, series in charts.over_time.items()]
    sections = {
        "What changed in the last day": _changed(data),
        "Where name servers disagree": _disagree(data),
        "Who flapped in the last day": _flapped(data),
        "Name servers": _name_servers(data),
        "Over time": "".join(over_time) or _NONE,
        "Changes by broker group": bars("Versions of rows that ended", "ended versions", charts.churn) or _NONE,
        "Removals by reason": bars("Rows that were removed, by table and reason", "removals", charts.removals) or _NONE,
    }
    head = (
        "<meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>Routes</title><style>{_STYLE}</style>"
    )
    as_of = f"<p>As of {_time(data.until)} UTC, when the log was written last.</p>"
    body = "".join(f"<h2>{escape(title)}</h2>{content}" for title, content in sections.items())
    return f"<!doctype html><html lang=en><head>{head}</head><body><h1>Routes</h1>{as_of}{body}</body></html>\n"


_NONE = "<p>None.</p>"


def _answer(text: str, *, bad: bool = False) -> str:
    return f"<p class='answer{' bad' if bad else ''}'>{escape(text)}</p>"


def _changed(data: ReportData) -> str:
    if not data.changed:
        return _answer("Nothing.")
    headings = ("what", "came", "changed", "went")
    counts = _table(headings, [(one["table_name"], one["came"], one["changed"], one["went"]) for one in data.changed])
    rows = [
        (one["moment"], one["table_name"], one["key"], one["kind"], one["why"], ", ".join(one["namesrvs"]))
        for one in data.latest
    ]
    latest = _table(("last at (UTC)", "what", "key", "it", "why", "name servers"), rows)
    return f"{counts}<p>The latest:</p>{latest}"


def _disagree(data: ReportData) -> str:
    if len(data.namesrvs) < 2:
        return _answer("There is one name server, and nothing to compare it with.")
    if not data.open_disagreements:
        return _answer(f"Nowhere: the {len(data.namesrvs)} name servers agree.")
    rows = [(one["since"], one["table_name"], one["key"], sides_of(one)) for one in data.disagreements]
    more = data.open_disagreements - len(rows)
    return (
        _answer(f"On {data.open_disagreements:,} rows.", bad=True)
        + _table(("since (UTC, time of the ingest)", "what", "key", "who has it"), rows)
        + (f"<p>And {more:,} more.</p>" if more else "")
    )


def _flapped(data: ReportData) -> str:
    if not data.flaps:
        return _answer("Nobody: no broker went away twice.")
    rows = [
        (one["key"], one["times"], one["moment"], ", ".join(one["why"]), ", ".join(one["namesrvs"]))
        for one in data.flaps
    ]
    return _table(("broker", "times it went", "last at (UTC)", "why", "name servers"), rows)


def _name_servers(data: ReportData) -> str:
    headings = ("name server", "epoch", "revision", "ingested at (UTC)", "topics", "queue rows", "brokers")
    columns = ("epoch", "revision", "ingested_at", "topics", "queue_rows", "brokers")
    rows = [
        (one["namesrv"] + (" (lost)" if one["lost"] else ""), *(one[column] for column in columns))
        for one in data.namesrvs
    ]
    return _table(headings, rows)


def _table(headings: Iterable[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return _NONE
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
