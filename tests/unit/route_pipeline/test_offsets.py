"""Offsets: those that Spark kept are read back. Damaged ones and other versions are refused with one line."""

from __future__ import annotations

from typing import Any

import pytest

from route_pipeline.positions import HOLE, INITIAL, Position, from_json, to_json

FIELDS = {"namesrv": "ns", "epoch": "1-a", "revision": 3, "state": "up", "snapshot": 5, "read_at": 7}


def test_what_was_written_is_read_back() -> None:
    positions = {"a:1": Position("ns", "1-a", 3, snapshot=5, read_at=7), "b:2": Position(state=HOLE)}
    assert from_json(to_json(positions)) == positions
    assert from_json(INITIAL) == {}


@pytest.mark.parametrize(
    "offset", [[], 0, None, {}, {"version": 1}, {"version": True, "namesrvs": {}}, {"version": "1"}]
)
def test_an_offset_of_another_version_is_refused(offset: Any) -> None:
    with pytest.raises(ValueError, match=r"offsets of version .*, this program knows 2: start a new checkpoint"):
        from_json(offset)


WRONG = {"revision": 1.5, "snapshot": -1, "read_at": "now", "epoch": None, "namesrv": ["ns"], "state": "elsewhere"}


@pytest.mark.parametrize(
    "fields", [None, [], FIELDS | {"revision": True}, *(FIELDS | {key: WRONG[key]} for key in WRONG)]
)
def test_a_damaged_position_is_refused(fields: Any) -> None:
    with pytest.raises(ValueError, match="damaged: start a new checkpoint"):
        from_json({"version": 2, "namesrvs": {"a:1": fields}})
