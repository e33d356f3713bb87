"""The page: nothing on it is fetched, and no name of others becomes a part of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest

from route_pipeline.queries import Change, Disagreement, Flap, LastDay, LatestState, NamesrvSummary
from route_pipeline.report_data import BROKERS, QUEUES, TOPICS, ReportData, Series

html_report = pytest.importorskip("route_pipeline.html_report", reason="matplotlib is not installed").html_report

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ODD = "<script>$x_1$"


def last_day(*, empty: bool) -> LastDay:
    if empty:
        return LastDay(NOON, [], [], [])
    change = Change(NOON, "brokers", ODD, "went", "EXPIRED", (ODD, "ns-b"))
    flap = Flap(ODD, 1_234, NOON, ("EXPIRED", "UNREGISTERED"), (ODD,))
    return LastDay(NOON, [("brokers", 1, 2, 3)], [change], [flap])


@cache
def page(*, empty: bool = False, namesrvs: int = 1) -> str:
    line: Series = {ODD: [(NOON, 1), (NOON + timedelta(hours=1), 3)]}
    data = ReportData(
        last_day=last_day(empty=empty),
        over_time={what: {} if empty else line for what in (TOPICS, QUEUES, BROKERS)},
        churn=[] if empty else [(ODD, 3)],
        removals=[] if empty else [("brokers", "EXPIRED", 2)],
        convergence={"wall": [], "ingest": []} if empty else {"wall": [0.0, 5.0], "ingest": [70.0]},
    )
    namesrv = NamesrvSummary(ODD, "0001", 1234, NOON, True, 11, 8_000, 2)
    there = [Disagreement(NOON, "brokers", ODD, (ODD,), ("ns-b",)), Disagreement(NOON, "topics", "T", ("x", "y"), ())]
    latest = LatestState([namesrv] * namesrvs, 0 if empty else 7, [] if empty else there)
    text: str = html_report(latest, data)
    return text


def test_names_of_others_are_text() -> None:
    assert "<script" not in page()
    assert "&lt;script&gt;$x_1$ (lost)" in page()


def test_pictures_are_inside_the_page() -> None:
    sources = re.findall(r'src="([^"]{0,30})', page())
    assert len(sources) == 6
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in re.sub(r'"data:[^"]*"', "", page())


def test_numbers_are_told_with_separators() -> None:
    assert "<td class=number>8,000</td>" in page()


def test_a_page_without_anything_says_so() -> None:
    empty = page(empty=True, namesrvs=2)
    assert empty.count("<p>None.</p>") == 3
    for answer in ("Nothing.", "Nowhere: the 2 name servers agree.", "Nobody: no", "No disagreement has ended."):
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


def test_it_fits_a_phone() -> None:
    assert "name=viewport content='width=device-width" in page()
    assert page().count("<table>") == page().count("<div class=wide><table>")
