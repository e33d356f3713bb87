"""What a batch says of itself: what was read, and what is missing before it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from route_pipeline.log.protocol.summaries import Summary, gap_of, point_of, read_text

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)


def summary(epoch: str = "0001", revision: int = 7, batch_id: int = 0, run: str = "r1") -> Summary:
    return Summary(run, batch_id, NOON, "ns-a", epoch, revision, 10, 0, "changes", None)


def read(op: str, revision: int, epoch: str = "0001", after: int | None = None) -> dict[str, Any]:
    return {"op": op, "epoch": epoch, "revision": revision, "after_revision": after, "reason": "gone"}


@pytest.mark.parametrize(
    ("reads", "before", "gap"),
    [
        ([read("snapshot", 5)], None, None),
        ([read("changes", 9, after=7)], summary(), None),
        ([read("changes", 9, after=6)], summary(), None),
        ([read("changes", 9, after=8)], summary(), "changes after revision 7 of epoch 0001 up to 8"),
        ([read("snapshot", 7)], summary(), None),
        ([read("snapshot", 9)], summary(), "single changes after revision 7 of epoch 0001 up to 9, which the"),
        ([read("snapshot", 1, "0002")], summary(), "what happened after revision 7 of epoch 0001 until the restart"),
        ([read("hole", 9, after=7)], summary(), "changes after 7 up to 9: gone"),
        ([read("lost", 7)], summary(), None),
        ([read("snapshot", 5)], summary(epoch=""), None),
    ],
)
def test_what_is_missing_is_named(reads: list[dict[str, Any]], before: Summary | None, gap: str | None) -> None:
    found = gap_of(reads, before)
    assert found is None if gap is None else found is not None and found.startswith(gap)


def test_a_name_server_is_known_up_to_what_was_read_and_never_less_than_before() -> None:
    assert point_of([read("changes", 9), read("lost", 12)], summary()) == ("0001", 9)
    assert point_of([read("changes", 6)], summary()) == ("0001", 7)
    assert point_of([read("snapshot", 1, "0002")], summary()) == ("0002", 1)
    assert point_of([read("lost", 0, "")], None) == ("", 0)


def test_several_reads_are_told_in_one_order() -> None:
    assert read_text([read("back", 7), read("snapshot", 7)]) == "snapshot,back"
