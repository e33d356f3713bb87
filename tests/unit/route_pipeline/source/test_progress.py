"""What a streaming query's progress says of the name servers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from route_pipeline.progress import NamesrvProgress, progress_of, seconds_since_change
from route_pipeline.stream_reader import HOLE, LOST, Position, to_json


def progress(reached: dict[str, Position], there: dict[str, Position] | None) -> dict[str, Any]:
    latest = None if there is None else json.dumps(to_json(there))
    source = {"endOffset": json.dumps(to_json(reached)), "latestOffset": latest}
    of_another = {"endOffset": '{"topic": {"0": 3}}', "latestOffset": None}
    return {"sources": [of_another, source], "timestamp": "2026-01-02T12:00:10.000Z", "observedMetrics": {}}


def test_revisions_behind_and_lost_name_servers_are_told_by_name_server() -> None:
    reached = {
        "a:1": Position("ns-a", "01", 7),
        "b:1": Position("ns-b", "01", 5, LOST),
        "c:1": Position("ns-c", "01", 9),
        "d:1": Position("ns-d", "01", 2, HOLE),
    }
    there = {
        "a:1": Position("ns-a", "01", 12),
        "b:1": Position("ns-b", "01", 5, LOST),
        "c:1": Position("ns-c", "02", 1),
        "d:1": Position("ns-d", "01", 4),
    }
    assert progress_of(progress(reached, there)) == [
        NamesrvProgress("a:1", "ns-a", lost=False, revisions_behind=5),
        NamesrvProgress("b:1", "ns-b", lost=True, revisions_behind=None),
        NamesrvProgress("c:1", "ns-c", lost=False, revisions_behind=None),
        NamesrvProgress("d:1", "ns-d", lost=True, revisions_behind=None),
    ]


def test_what_was_not_reported_is_not_known() -> None:
    (only,) = progress_of(progress({"a:1": Position("ns-a", "01", 7)}, None))
    assert only.revisions_behind is None


def test_the_age_of_the_news_is_between_the_change_and_the_batch() -> None:
    of_batch = progress({}, None)
    assert seconds_since_change(of_batch) is None
    changed = round(datetime(2026, 1, 2, 12, 0, 3, tzinfo=UTC).timestamp() * 1000)
    for changed_at, seconds in ((changed, 7.0), (None, None)):
        of_batch["observedMetrics"] = {"namesrv": {"last_change_millis": changed_at, "rows": 3, "put_aside": 0}}
        assert seconds_since_change(of_batch) == seconds
