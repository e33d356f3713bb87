"""The page: nothing on it is fetched, and no name of others becomes a part of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from route_pipeline.reports.comparison import Comparison, NamesrvSummary
from route_pipeline.reports.data import BROKERS, QUEUES, TOPICS, ReportData, Series

html_report = pytest.importorskip("route_pipeline.reports.html", reason="matplotlib is not installed").html_report

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ODD = "<script>$x_1$"


def page(*, empty: bool = False) -> str:
    line: Series = {ODD: [(NOON, 1), (NOON + timedelta(hours=1), 3)]}
    data = ReportData(
        over_time={what: {} if empty else line for what in (TOPICS, QUEUES, BROKERS)},
        churn=[] if empty else [(ODD, 3)],
        removals=[] if empty else [("brokers", "EXPIRED", 2)],
        convergence={"wall": [], "ingest": []} if empty else {"wall": [0.0, 5.0], "ingest": [70.0]},
        open_disagreements=2,
        largest_topics=[] if empty else [(ODD, 2, 8000)],
        without_master=[],
        not_writable=[],
    )
    namesrv = NamesrvSummary(ODD, "0001", 1234, NOON, True, 1, 11, 12, 88, 80, 2)
    text: str = html_report(Comparison("run", (namesrv,), ()), data)
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
    assert page(empty=True).count("<p>None.</p>") == 8
    assert "No disagreement has ended." in page(empty=True)
