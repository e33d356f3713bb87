"""docs/deviations.md names tests that exist, and no scenario is forgotten."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[3]
PAGE = TESTS.parent / "docs" / "deviations.md"
SCENARIOS = frozenset(range(1, 86))

_TEST = re.compile(r"`(test_\w+\.py)(?:::(test_\w+))?`")
_IN_NAME = re.compile(r"^test_scenarios?_(\d+)(?:_to_(\d+))?_")
_IN_DOCSTRING = re.compile(r"Scenarios? ([^.:]*)")
_ROW = re.compile(r"^\| (\d+)(?: to (\d+))?[^|]*\|", re.MULTILINE)


class ShownBy(NamedTuple):
    """A test function, wherever it is."""

    file: str
    name: str
    docstring: str


@cache
def all_tests() -> tuple[ShownBy, ...]:
    return tuple(_all_tests())


def _all_tests() -> Iterator[ShownBy]:
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield ShownBy(file.name, node.name, ast.get_docstring(node) or "")


def span(first: str, last: str | None) -> range:
    return range(int(first), int(last or first) + 1)


def scenarios_of(test: ShownBy) -> set[int]:
    """The scenarios that a test says it shows, in its name or at the beginning of its docstring."""
    shown: set[int] = set()
    if in_name := _IN_NAME.match(test.name):
        shown.update(span(*in_name.groups()))
    if in_docstring := _IN_DOCSTRING.match(test.docstring):
        shown.update(map(int, re.findall(r"\d+", in_docstring[1])))
    return shown


def test_every_test_that_the_page_names_exists() -> None:
    there = {(test.file, test.name) for test in all_tests()}
    files = {(file, "") for file, _ in there}
    named = set(_TEST.findall(PAGE.read_text(encoding="utf-8")))
    assert len(named) > 30
    assert named <= there | files


def test_every_row_of_the_page_names_a_test_or_says_why_there_is_none() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    without_test = [
        row for row in rows if not _TEST.search(row) and not row.startswith(("| RocketMQ |", "| scenarios |"))
    ]
    assert without_test == []


def test_every_scenario_is_shown_by_a_test_or_listed_on_the_page() -> None:
    listed = {number for row in _ROW.finditer(PAGE.read_text(encoding="utf-8")) for number in span(*row.groups())}
    shown = {number for test in all_tests() for number in scenarios_of(test)}
    assert shown | listed == SCENARIOS


def test_a_scenario_of_the_name_server_that_is_only_listed_is_shown_elsewhere() -> None:
    shown = {number for test in all_tests() for number in scenarios_of(test)}
    of_name_server = {*range(1, 62), 66, 67, 68}
    assert of_name_server - shown == {56}
