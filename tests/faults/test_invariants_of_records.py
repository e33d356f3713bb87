"""Each check of journals and logs notices what it is for: histories made by hand, sound ones and broken ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.story import MASTER, SERVER, Story, story

__all__ = ["story"]  # pytest finds the fixture by its name in this module


def _journal(story: Story, *entries: dict[str, Any], up_to: int = 1_000) -> None:
    told = [{"removed": 0, "reason": "UNSPECIFIED", "summary": "", **entry} for entry in entries]
    story.add(59, "journal", server=SERVER, epoch="1", group="broker-b", up_to=up_to, entries=told)


LEFT = {"revision": 215, "removed": 1, "reason": "EXPIRED"}


@pytest.mark.parametrize(
    ("entries", "broken"),
    [
        ([LEFT, {"revision": 225}], []),
        ([{"revision": 225}], ["journal"]),
        ([{"revision": 215}, {"revision": 225}], ["journal"]),
        ([LEFT], ["journal"]),
        ([{**LEFT, "revision": 210}, {"revision": 225}], ["journal"]),
        ([{**LEFT, "reason": "UNREGISTERED"}, {"revision": 225}], ["journal"]),
        ([{**LEFT, "reason": "UNSPECIFIED"}, {"revision": 225}], ["journal"]),
    ],
)
def test_a_journal_must_tell_who_left_and_came_and_why(
    story: Story, entries: list[dict[str, Any]], broken: list[str]
) -> None:
    story.add(20.5, "process", name=MASTER, event="killed")
    _leaves_and_comes(story)
    _journal(story, *entries)
    assert story.broken() == broken


def test_a_broker_that_was_asked_to_end_may_have_unregistered(story: Story) -> None:
    story.add(20.5, "process", name=MASTER, event="ended")
    _leaves_and_comes(story)
    _journal(story, {**LEFT, "reason": "UNREGISTERED"}, {"revision": 225})
    assert story.broken() == []


def test_what_was_not_read_of_a_journal_is_not_held_against_it(story: Story) -> None:
    story.add(20.5, "process", name=MASTER, event="killed")
    _leaves_and_comes(story)
    _journal(story, LEFT, up_to=220)
    assert story.broken() == []


def _leaves_and_comes(story: Story) -> None:
    """Revisions 210, 220 and 230; the broker is not there at the second."""
    story.lookup(21)
    story.lookup(22, lacks=("T0", "only-broker-b"))
    story.lookup(23)


PUT = ["topic_queues", "T0/c/broker-b", "put", [1, 1, 6, 0]]
READS = ["reads", "127.0.0.1:1"]
BEGUN = ([1, True, "snapshot", None], [2, False, "changes", 1])
"""A snapshot, and the changes after it."""


def _followed(story: Story, rows: list[Any], up_to: int = 3) -> None:
    """A pipeline that began with a snapshot of revision 1, and what was told of the revisions from 2 to 3."""
    for reader in ("Spark", "Arrow"):
        snapshot = [[1, True, *PUT], [1, True, *READS, "snapshot", [None]]]
        read = [[up_to, False, *READS, "changes", [1]]]
        story.add(50, "ingested", reader=reader, server=SERVER, epoch="1", rows=[*snapshot, *rows, *read])
    for revision in (2, 3):
        told = [[revision, *PUT]]
        story.add(40 + revision, "changes", server=SERVER, epoch="1", after=revision - 1, up_to=revision, rows=told)


@pytest.mark.parametrize(
    ("rows", "broken"),
    [
        ([[2, False, *PUT], [3, False, *PUT]], []),
        ([[3, False, *PUT]], ["pipeline"] * 2),
        ([[2, False, *PUT], [2, False, *PUT], [3, False, *PUT]], ["pipeline"] * 4),
        ([[2, False, *PUT[:3], [9, 1, 6, 0]], [3, False, *PUT]], ["pipeline"] * 2),
    ],
)
def test_a_log_must_have_what_was_told_and_each_row_once(story: Story, rows: list[Any], broken: list[str]) -> None:
    _followed(story, rows)
    assert story.broken() == broken


def test_what_is_told_again_must_be_the_same(story: Story) -> None:
    _followed(story, [[2, False, *PUT], [3, False, *PUT]])
    again = {"server": SERVER, "epoch": "1", "after": 0, "up_to": 3}
    story.add(44, "changes", **again, rows=[[2, *PUT], [3, *PUT]])
    assert story.broken() == []
    story.add(45, "changes", **again, rows=[[2, *PUT], [3, *PUT], [3, *PUT]])
    assert story.broken() == ["pipeline"]


def test_a_log_must_come_to_the_end(story: Story) -> None:
    _followed(story, [[2, False, *PUT]], up_to=2)
    assert story.broken() == ["pipeline"] * 2


@pytest.mark.parametrize(
    ("reads", "broken"),
    [
        ([[1, True, "snapshot", None], [3, True, "snapshot", None], [4, False, "changes", 3]], []),
        ([[1, True, "snapshot", None], [2, True, "snapshot", None], [4, False, "changes", 3]], ["pipeline"] * 2),
        ([[1, True, "snapshot", None], [4, False, "changes", 3]], ["pipeline"] * 2),
        ([[4, False, "changes", 3]], ["pipeline"] * 2),
        ([*BEGUN, [3, False, "hole", 2], [3, True, "snapshot", None], [4, False, "changes", 3]], []),
        ([*BEGUN, [3, False, "hole", 2], [4, False, "changes", 3]], ["pipeline"] * 2),
        ([*BEGUN, [3, True, "snapshot", None], [4, False, "changes", 3]], ["pipeline"] * 2),
    ],
)
def test_a_gap_in_a_log_is_between_the_first_two_snapshots_or_a_hole_that_a_snapshot_fills(
    story: Story, reads: list[list[Any]], broken: list[str]
) -> None:
    for revision in (2, 3, 4):
        told = [[revision, *PUT]]
        story.add(40 + revision, "changes", server=SERVER, epoch="1", after=revision - 1, up_to=revision, rows=told)
    rows = [[revision, from_snapshot, *READS, op, [after]] for revision, from_snapshot, op, after in reads]
    known = [[revision, False, *PUT] for revision in (2, 4) if [2, False, "changes", 1] in reads or revision == 4]
    for reader in ("Spark", "Arrow"):
        story.add(50, "ingested", reader=reader, server=SERVER, epoch="1", rows=[*known, *rows])
    assert story.broken() == broken
