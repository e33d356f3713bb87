"""The rules of the log, each broken by one row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.quality import problems_of
from route_pipeline.schemas import CHANGES

SEEN = {"revision": 7, "changed_at": datetime(2026, 1, 1, tzinfo=UTC), "op": "put", "from_snapshot": False}
COMMON: dict[str, Any] = {"namesrv": "ns-a", "epoch": "0001", **SEEN}
GROUP_NAMES = {"cluster_name": "c", "broker_name": "b"}
NUMBERS = {"read_queue_nums": 65_535, "write_queue_nums": 0, "perm": 7}
QUEUE = COMMON | GROUP_NAMES | NUMBERS | {"table_name": "topic_queues", "key": "T/c/b", "topic": "T"}
ADDRESSES = [{"broker_id": 0, "broker_addr": "10.0.0.1:10911"}]
GROUP = COMMON | GROUP_NAMES | {"table_name": "broker_groups", "key": "c/b", "broker_addrs": ADDRESSES}
BROKER_NAMES = {"cluster_name": "c", "broker_addr": "10.0.0.1:10911"}
BROKER = COMMON | BROKER_NAMES | {"table_name": "brokers", "key": "c/10.0.0.1:10911", "broker_id": 0}
CLUSTER = COMMON | {"table_name": "clusters", "key": "c", "cluster_name": "c"}
FILTERS = COMMON | {"table_name": "filter_servers", "key": "c/10.0.0.1:10911", "op": "remove"}
LOST = COMMON | {"table_name": "reads", "key": "10.0.0.1:9876", "op": "lost", "epoch": "", "revision": 0}
REMOVED = {"op": "remove", "reason": "EXPIRED"}
ROWS = [QUEUE, GROUP, BROKER, CLUSTER, FILTERS, LOST, QUEUE | REMOVED | {"perm": None}, BROKER | REMOVED]


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(CHANGES))


def test_rows_of_every_table_that_keep_the_rules_have_no_problem() -> None:
    assert problems_of(batch(*ROWS)) is None
    assert problems_of(batch()) is None


@pytest.mark.parametrize(
    ("row", "broken", "problem"),
    [
        (QUEUE, {"table_name": "topics"}, "table_name is none of ours"),
        (QUEUE, {"op": "snapshot"}, "op is none of ours"),
        (LOST, {"op": "put"}, "op is none of ours"),
        (QUEUE, {"namesrv": ""}, "namesrv is empty"),
        (QUEUE, {"epoch": ""}, "epoch is empty"),
        (CLUSTER, {"key": ""}, "key is empty"),
        (CLUSTER, {"revision": -1}, "revision is negative"),
        (CLUSTER, {"changed_at": datetime(1999, 12, 31, tzinfo=UTC)}, "changed_at is before 2000"),
        (QUEUE, {"broker_name": None}, "topic, cluster_name or broker_name is missing"),
        (QUEUE, {"read_queue_nums": 65_536}, "read_queue_nums is missing or out of range"),
        (QUEUE, {"write_queue_nums": -1}, "write_queue_nums is missing or out of range"),
        (QUEUE, {"perm": None}, "perm is missing or out of range"),
        (QUEUE, {"perm": 8}, "perm is missing or out of range"),
        (QUEUE | REMOVED, {"reason": "UNSPECIFIED"}, "a removal does not say why"),
        (GROUP, {"broker_name": ""}, "cluster_name or broker_name is missing"),
        (GROUP, {"broker_addrs": []}, "a group has no addresses"),
        (GROUP, {"broker_addrs": None}, "a group has no addresses"),
        (GROUP | REMOVED, {"reason": None}, "a removal does not say why"),
        (BROKER, {"broker_addr": None}, "cluster_name or broker_addr is missing"),
        (BROKER, {"broker_id": -1}, "broker_id is missing or out of range"),
        (BROKER | REMOVED, {"reason": ""}, "a removal does not say why"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named_among_those_that_do_not(
    row: dict[str, Any], broken: dict[str, Any], problem: str
) -> None:
    problems = problems_of(batch(*ROWS, row | broken, *ROWS))
    assert problems is not None
    assert problems.to_pylist() == [None] * len(ROWS) + [problem] + [None] * len(ROWS)


def test_the_first_rule_that_a_row_breaks_is_told() -> None:
    problems = problems_of(batch(QUEUE | {"perm": 9}, QUEUE | {"perm": 9, "namesrv": ""}))
    assert problems is not None
    assert problems.to_pylist() == ["perm is missing or out of range", "namesrv is empty"]
