"""The report as one HTML page, with its plots inside: nothing is fetched when it is looked at.

It opens with what a person asks first; what explains it comes after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from route_pipeline.questions import Row
from route_pipeline.report_data import Charts, ReportData, Series, sides_of

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
    latest = _table(("last at (UTC)", "what", "key", "it", "why", "name servers"), data.latest)
    return f"{_table(('what', 'came', 'changed', 'went'), data.changed)}<p>The latest:</p>{latest}"


def _disagree(data: ReportData) -> str:
    if len(data.namesrvs) < 2:
        return _answer("There is one name server, and nothing to compare it with.")
    if not data.open_disagreements:
        return _answer(f"Nowhere: the {len(data.namesrvs)} name servers agree.")
    columns = ("since", "table_name", "key")
    rows = [{column: one[column] for column in columns} | {"sides": sides_of(one)} for one in data.disagreements]
    more = data.open_disagreements - len(rows)
    return (
        _answer(f"On {data.open_disagreements:,} rows.", bad=True)
        + _table(("since (UTC, time of the ingest)", "what", "key", "who has it"), rows)
        + (f"<p>And {more:,} more.</p>" if more else "")
    )


def _flapped(data: ReportData) -> str:
    if not data.flaps:
        return _answer("Nobody: no broker went away twice.")
    return _table(("broker", "times it went", "last at (UTC)", "why", "name servers"), data.flaps)


def _name_servers(data: ReportData) -> str:
    headings = ("name server", "epoch", "revision", "ingested at (UTC)", "topics", "queue rows", "brokers")
    columns = ("namesrv", "epoch", "revision", "ingested_at", "topics", "queue_rows", "brokers")
    rows = [{column: one[column] for column in columns} for one in data.namesrvs]
    for row, one in zip(rows, data.namesrvs, strict=True):
        row["namesrv"] += " (lost)" if one["lost"] else ""
    return _table(headings, rows)


def _table(headings: Iterable[str], rows: Sequence[Row]) -> str:
    """A table of rows whose columns are in the order of the headings."""
    if not rows:
        return _NONE
    head = "".join(
        f"<th class=number>{escape(heading)}</th>" if isinstance(value, int) else f"<th>{escape(heading)}</th>"
        for heading, value in zip(headings, rows[0].values(), strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row.values()))}</tr>" for row in rows)
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"<td class=number>{value:,}</td>"
    if isinstance(value, datetime):
        return f"<td class=time>{_time(value)}</td>"
    if isinstance(value, list):
        value = ", ".join(value)
    return f"<td>{escape(str(value))}</td>"


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


# The plots: SVG inside the page, with a title and units. Names come from others.

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
