"""Invariants of every history, whatever the faults: checks that read a history and say what is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.faults.history import Record
from tests.faults.invariants.ends import check_agreement, check_left_overs
from tests.faults.invariants.lookups import check_forward, check_found, check_gone, check_journal, check_whole
from tests.faults.invariants.timeline import Timeline
from tests.faults.invariants.watches import check_clients, check_watches
from tests.faults.invariants.writes import check_writes

Check = Callable[[list[Record], Timeline], Iterator[str]]

CHECKS: tuple[Check, ...] = (
    check_found,
    check_gone,
    check_whole,
    check_forward,
    check_writes,
    check_watches,
    check_clients,
    check_journal,
    check_agreement,
    check_left_overs,
)


def violations(records: list[Record]) -> list[str]:
    """What is broken, a line each; empty if all is well."""
    timeline = Timeline(records)
    return [violation for check in CHECKS for violation in check(records, timeline)]
