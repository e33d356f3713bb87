"""The report in a terminal and as a page: its rows, and names that must not become markup."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
from rich.console import Console

from route_pipeline.html_report import html_report
from route_pipeline.log.place import SCHEMA
from route_pipeline.questions import Questions, Row
from route_pipeline.report_data import Charts, ReportData, Series, collect_report
from route_pipeline.tables import print_report
from tests.support.routes import log_rows

NOON = datetime(2026, 1, 2, 12, 0, 0, 5000, tzinfo=UTC)


def disagreement(table: str, key: str, have: list[str], lack: list[str]) -> Row:
    return {"since": NOON, "table_name": table, "key": key, "have": have, "lack": lack}


def printed(*disagreements: Row, count: int = 0, names: tuple[str, ...] = ("ns-a", "ns-b"), lost: bool = False) -> str:
    out = io.StringIO()
    known = {"epoch": "0001", "revision": 1234, "known_from": NOON, "known_to": NOON, "lost": lost}
    namesrvs = [{"namesrv": name, **known, "topics": 11, "queue_rows": 12, "brokers": 2} for name in names]
    data = ReportData(NOON, namesrvs, count, list(disagreements), [], [], [])
    print_report(data, Console(file=out, width=160, markup=False, highlight=False, emoji=False))
    return out.getvalue()


def test_each_name_server_has_a_line_with_its_numbers() -> None:
    line = next(line for line in printed().splitlines() if "ns-b" in line)

    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == ["ns-b", "0001", "1,234", *["2026-01-02 12:00:00.005"] * 2, "11", "12", "2"]


def test_equal_name_servers_have_no_differences_and_one_is_not_called_equal() -> None:
    assert "No differences between the 2 name servers." in printed()
    assert "nothing to compare it with" in printed(names=("ns-a",))
    assert "2026-01-02 12:00:00.005 (lost)" in printed(lost=True)


def test_a_disagreement_says_since_when_and_which_name_servers_had_the_row() -> None:
    text = printed(
        disagreement("clusters", "c", ["ns-b"], ["ns-a"]),
        disagreement("brokers", "b", ["ns-a", "ns-b"], []),
        count=5_000,
    )

    assert "ns-b; not ns-a" in text
    assert "ns-a, ns-b, not all the same" in text
    assert "Disagreements: 5,000" in text
    assert "(the oldest 2 of 5,000 are shown)" in text


ODD = "<script>$x_1$"


def page(*, empty: bool = False, namesrvs: int = 1) -> str:
    line: Series = {ODD: [(NOON, 1), (NOON + timedelta(hours=1), 3)]}
    namesrv = {"namesrv": ODD, "epoch": "0001", "revision": 1234, "ingested_at": NOON, "lost": True}
    change = {"moment": NOON, "table_name": "brokers", "key": ODD, "kind": "went", "why": "EXPIRED"}
    flap = {"key": ODD, "times": 1_234, "moment": NOON, "why": ["EXPIRED", "UNREGISTERED"], "namesrvs": [ODD]}
    since = {"since": NOON, "table_name": "brokers", "key": ODD}
    there = [since | {"have": [ODD], "lack": ["ns-b"]}, since | {"have": ["x", "y"], "lack": []}]
    data = ReportData(
        until=NOON,
        namesrvs=[namesrv | {"topics": 11, "queue_rows": 8_000, "brokers": 2}] * namesrvs,
        open_disagreements=0 if empty else 7,
        disagreements=[] if empty else there,
        changed=[] if empty else [{"table_name": "brokers", "came": 1, "changed": 2, "went": 3}],
        latest=[] if empty else [change | {"namesrvs": [ODD, "ns-b"]}],
        flaps=[] if empty else [flap],
    )
    charts = Charts(
        over_time={} if empty else dict.fromkeys(("topics", "write queues", "brokers"), line),
        churn=[] if empty else [{"name": ODD, "number": 3}],
        removals=[] if empty else [{"name": "brokers: EXPIRED", "number": 2}],
    )
    return html_report(data, charts)


def test_the_page_is_whole_fetches_nothing_and_has_names_of_others_as_text() -> None:
    text = page()
    assert "<script" not in text
    assert "&lt;script&gt;$x_1$ (lost)" in text
    assert text.count("<svg") == 5
    assert "http" not in text
    assert not re.search(r"(?:src|href)=", text)
    assert "name=viewport content='width=device-width" in text, "it fits a phone"
    assert text.count("<table>") == text.count("<div class=wide><table>")
    assert "<td class=number>8,000</td>" in text
    (line, *_) = re.findall("d='([^']*)' fill", text)
    assert line == "M70.0,153.3H800.0V28.0H800", "from a third of the height to the right edge, and to the top there"


def test_a_page_without_anything_says_so() -> None:
    empty = page(empty=True, namesrvs=2)
    assert empty.count("<p>None.</p>") == 3
    for answer in ("Nothing.", "Nowhere: the 2 name servers agree.", "Nobody: no"):
        assert answer in empty


def test_it_opens_with_what_a_person_asks_first() -> None:
    text = page(namesrvs=2)
    titles = re.findall("<h2>([^<]*)</h2>", text)
    asked = ["What changed in the last day", "Where name servers disagree", "Who flapped in the last day"]
    assert titles[:3] == asked
    assert text.index("As of 2026-01-02 12:00:00 UTC") < text.index("<h2>")
    opening = text[: text.index("<h2>Name servers")]
    assert "<td class=number>1,234</td>" in opening
    assert "On 7 rows." in opening
    assert "; not ns-b</td>" in opening
    assert "x, y, not all the same" in opening
    assert "And 5 more." in opening
    assert "nothing to compare it with" in page()


# What it opens with, computed from rows of a log.

LAST_INGEST = datetime(2026, 1, 2, 12, tzinfo=UTC)


def at(hours: float) -> datetime:
    return LAST_INGEST + timedelta(hours=hours)


def row(namesrv: str, revision: int, hours: float, **more: Any) -> dict[str, Any]:
    """A row, changed at a time and ingested then."""
    own = {"ingested_at": at(hours), "kind": "changes", "batch": revision}
    return log_rows.row(namesrv, revision, at(hours), **own) | more


def broker(namesrv: str, revision: int, hours: float, key: str, **more: Any) -> dict[str, Any]:
    named = {"table_name": "brokers", "key": key, "cluster_name": "c", "broker_name": "b", "broker_addr": key}
    return row(namesrv, revision, hours, **named, **more)


def snapshot(namesrv: str, hours: float, *keys: str) -> list[dict[str, Any]]:
    mark = row(namesrv, 1, hours, table_name="reads", key=namesrv, op="snapshot", kind="reads")
    return [*(broker(namesrv, 1, hours, key, from_snapshot=True) for key in keys), mark]


def test_the_last_day_ends_with_the_last_ingest_and_a_first_read_is_no_news() -> None:
    gone = {"op": "remove", "reason": "EXPIRED"}
    rows = [
        *snapshot("ns-a", -30, "x", "y", "old"),
        *snapshot("ns-b", -3, "x", "y", "z"),
        broker("ns-a", 2, -28, "old", **gone),  # before the day
        broker("ns-a", 3, -5, "x", **gone),
        broker("ns-a", 4, -4, "x"),
        broker("ns-a", 5, -2, "x", **gone),
        broker("ns-a", 6, -1, "x"),
        broker("ns-a", 7, -0.5, "y", zone_name="zone-2"),
        broker("ns-b", 2, -0.25, "y", zone_name="zone-2"),
        broker("ns-b", 3, 0, "y", **gone),
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    with duckdb.connect() as connection:
        connection.register("given", table)
        data = collect_report(Questions(connection, "create view log as from given;"))

    assert data.until == LAST_INGEST
    assert data.changed == [{"table_name": "brokers", "came": 1, "changed": 1, "went": 2}]
    assert [tuple(one.values()) for one in data.latest[:3]] == [
        (at(0), "brokers", "y", "went", "EXPIRED", ["ns-b"]),
        (at(-0.25), "brokers", "y", "changed", "", ["ns-a", "ns-b"]),
        (at(-1), "brokers", "x", "came", "", ["ns-a"]),
    ]
    assert [tuple(one.values()) for one in data.flaps] == [("x", 2, at(-2), ["EXPIRED"], ["ns-a"])]
    assert data.open_disagreements == 2
    told = [(one["since"], one["key"], one["have"], one["lack"]) for one in data.disagreements]
    assert told == [(at(-3), "z", ["ns-b"], ["ns-a"]), (at(0), "y", ["ns-a"], ["ns-b"])]
