"""What the report says."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from route_pipeline.comparison import Comparison, Difference, NamesrvSummary, TableDifferences
from route_pipeline.tables import print_report

NOON = datetime(2026, 1, 2, 12, 0, 0, 5000, tzinfo=UTC)


def summary(name: str, *, lost: bool = False) -> NamesrvSummary:
    return NamesrvSummary(name, "0001", 1234, NOON, lost, 1, 11, 12, 88, 80, 2)


def printed(*differences: TableDifferences, names: tuple[str, ...] = ("ns-a", "ns-b")) -> str:
    out = io.StringIO()
    comparison = Comparison("20260102T120000.000000Z", tuple(summary(name) for name in names), differences)
    print_report(comparison, Console(file=out, width=160, markup=False, highlight=False, emoji=False))
    return out.getvalue()


def test_each_name_server_has_a_line_with_its_numbers() -> None:
    line = next(line for line in printed().splitlines() if "ns-b" in line)

    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == ["ns-b", "0001", "1,234", "2026-01-02 12:00:00.005", "1", "11", "12", "88", "80", "2"]


def test_a_lost_name_server_is_marked() -> None:
    out = io.StringIO()
    print_report(Comparison("run", (summary("ns-a", lost=True),), ()), Console(file=out, width=160))
    assert "2026-01-02 12:00:00.005 (lost)" in out.getvalue()


def test_equal_name_servers_have_no_differences() -> None:
    assert "No differences between the 2 name servers." in printed()


def test_one_name_server_is_not_called_equal() -> None:
    assert "nothing to compare it with" in printed(names=("ns-a",))


def test_a_difference_shows_only_the_columns_that_differ() -> None:
    values: dict[str, dict[str, Any]] = {
        "ns-a": {"perm": 6, "read_queue_nums": 8, "zone_name": None},
        "ns-b": {"perm": 4, "read_queue_nums": 8, "zone_name": "z"},
    }
    text = printed(TableDifferences("topic_queues", 1, (Difference({"topic": "TopicTest"}, values),)))

    assert "perm=6, zone_name=none" in text
    assert "perm=4, zone_name=z" in text
    assert "read_queue_nums" not in text
    assert "The name servers differ: topic_queues 1." in text


def test_a_row_that_only_one_has_is_present_there_and_absent_elsewhere() -> None:
    text = printed(TableDifferences("clusters", 1, (Difference({"cluster_name": "c"}, {"ns-b": {}}),)))

    line = next(line for line in text.splitlines() if line.startswith("│ c "))
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["c", "absent", "present"]


def test_differences_that_are_not_shown_are_counted() -> None:
    shown = (Difference({"topic": "t"}, {"ns-a": {"perm": 6}}),)

    assert "(the first 1 of 5,000 are shown)" in printed(TableDifferences("topic_queues", 5000, shown))


def test_names_of_others_are_not_taken_for_markup() -> None:
    assert "[::1]:9876" in printed(names=("[::1]:9876", "[red]b"))
    assert "[red]b" in printed(names=("[::1]:9876", "[red]b"))
