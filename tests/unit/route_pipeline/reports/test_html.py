"""The page: nothing on it is fetched, and no name of others becomes a part of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache

from route_pipeline.html_report import html_report
from route_pipeline.report_data import Charts, ReportData, Series

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ODD = "<script>$x_1$"


@cache
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


def test_names_of_others_are_text() -> None:
    assert "<script" not in page()
    assert "&lt;script&gt;$x_1$ (lost)" in page()


def test_the_page_is_whole_fetches_nothing_and_fits_a_phone() -> None:
    assert page().count("<svg") == 5
    assert "http" not in page()
    assert not re.search(r"(?:src|href)=", page())
    assert "name=viewport content='width=device-width" in page()
    assert page().count("<table>") == page().count("<div class=wide><table>")
    assert "<td class=number>8,000</td>" in page()


def test_a_line_has_its_points_where_they_are() -> None:
    """It begins at a third of the height, keeps that to the right edge, and ends on top."""
    (path, *_) = re.findall("d='([^']*)' fill", page())
    assert path == "M70.0,153.3H800.0V28.0H800"


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
