"""What the report says."""

from __future__ import annotations

import io
from datetime import UTC, datetime

from rich.console import Console

from route_pipeline.questions import Row
from route_pipeline.report_data import ReportData
from route_pipeline.tables import print_report

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


def test_names_of_others_are_not_taken_for_markup() -> None:
    text = printed(names=("[::1]:9876", "[red]b"))
    assert "[::1]:9876" in text
    assert "[red]b" in text
