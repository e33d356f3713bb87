"""The merge of a change into the topic table, on another thread than lookups and copies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import pytest

from namesrv.core.model import BrokerKey, DataVersion, Registration, TopicQueues
from namesrv.core.snapshot import RouteTable
from namesrv.core.tables import TopicTable
from tests.support.breaths import breathing, short_breaths
from tests.support.core_fleet import CLUSTER, A, Fleet

MERGES = 1_000
TOPICS = 400
"""Half of them are in a change. They are few, so lookups often find one that is just being merged."""
SWITCH_SECONDS = 20e-6
"""Time after which a thread gives the interpreter away."""


@pytest.fixture
def _threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    yield
    sys.setswitchinterval(before)


def changed_rows(number: int) -> dict[str, TopicQueues | None]:
    """A change of half of the topics: a third of these go, the others come or change."""
    queues = (b"%d" % number,)
    return {f"t-{topic}": queues if (topic + number) % 3 else None for topic in range(number % 2, TOPICS, 2)}


@pytest.mark.usefixtures("_threads_switch_often")
def test_lookups_beside_a_merge_find_every_row() -> None:
    table, rows = TopicTable(), dict[str, TopicQueues | None]()
    beside = 0
    with ThreadPoolExecutor(1) as thread:
        for number in range(MERGES):
            changed = changed_rows(number)
            came = sum(queues is not None and rows.get(topic) is None for topic, queues in changed.items())
            went = sum(queues is None and rows.get(topic) is not None for topic, queues in changed.items())
            copy, before = table.copy(), present(rows)  # so the merge replaces the shards
            table.publish(changed.copy(), came, went)
            rows.update(changed)
            merge, topics = thread.submit(table.settle), cycle(rows)
            while not merge.done():
                topic = next(topics)
                assert table.get(topic) == rows[topic]
                assert (topic in table) == (rows[topic] is not None)
                beside += 1
            merge.result()
            assert dict(table.copy()) == present(rows)
            assert dict(copy) == before
    assert beside > MERGES, "or nothing was looked up meanwhile"


def present(rows: dict[str, TopicQueues | None]) -> dict[str, TopicQueues]:
    return {topic: queues for topic, queues in rows.items() if queues is not None}


def test_the_topic_table_is_not_copied_while_a_change_is_merged(fleet: Fleet) -> None:
    topics = {f"t{number}": (4, 4, 6, 0) for number in range(5)}
    registration = Registration(BrokerKey(CLUSTER, "broker-a"), 0, A, DataVersion(1, 1), topics)
    change = fleet.routes.registrations.register_broker(registration)
    change.prepare()
    assert not fleet.state.snapshot().topics.rows
    change.commit()
    moments = 0

    def nobody_copies() -> None:
        nonlocal moments
        if fleet.state.tables.topic_queue_table.is_settled:
            return  # what is left is to be freed
        moments += 1
        lists = fleet.state.topic_lists
        for copy in (fleet.state.snapshot, lists.names, lists.all, lambda: lists.with_flags(0, 0)):
            with pytest.raises(AssertionError, match="while the last change is merged"):
                copy()
        assert fleet.state.snapshot([RouteTable.BROKER_GROUPS]).groups, "which copies no topics"

    nobody_copies()
    with short_breaths(), breathing(nobody_copies):
        change.state.settle()
    assert moments >= len(topics)
    assert set(fleet.state.snapshot().topics.rows) == set(fleet.state.topic_lists.all()("", 10)) == topics.keys()
