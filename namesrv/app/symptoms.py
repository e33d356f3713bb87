"""What producers and consumers suffer from, as numbers for metrics: counted on a thread whenever the routes changed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from namesrv.app.worker import Worker
from namesrv.core.changes import Change, QueuesChange
from namesrv.core.model import READ, WRITE, BrokerData, BrokerKey, QueueData, RemovalReason, TopicQueues
from namesrv.core.pace import paced
from namesrv.core.persistent_map import PersistentMap
from namesrv.core.state import RouteState
from namesrv_common.endpoints import unreachable_addresses
from namesrv_common.topic_names import is_application

PERIOD_SECONDS = 15.0
"""Time between two counts: a usual period of scrapes. A million topics take a thread some 0.3 s."""

LOST_SECONDS = 86_400.0
"""Time for which a topic counts as lost: a broker that stays away for a day has been retired."""

MAX_DEPARTURES = 1_000
"""Most broker groups that may leave between two counts and have their topics looked up."""

MAX_LOST_TOPICS = 100_000
"""Most lost topics that are remembered, some 10 MB."""

ROWS_AT_ONCE = 256
"""Rows of the topic table between two yield points: some 50 µs."""

_BY_WILL = frozenset({RemovalReason.NOT_IN_REGISTRATION, RemovalReason.DELETED_BY_OPERATOR})
"""The reasons for which a topic goes because somebody deleted it."""


class Symptoms(NamedTuple):
    """The counts."""

    unwritable_topics: int = 0
    """Application topics in the routes that no producer can write: no writable queue in a group with a master."""
    lost_topics: int = 0
    """Application topics that left the routes with their last broker and have not come back."""
    groups_without_master: int = 0
    local_brokers: int = 0
    """Brokers at a wildcard address, and at a loopback address unless all brokers are at one."""


class SymptomCounter:
    """Counts symptoms. Create it inside the event loop, which reads ``last`` like any other thread."""

    def __init__(self, state: RouteState, reader: Worker, monotonic: Callable[[], float]) -> None:
        self._state = state
        self._reader = reader
        self._monotonic = monotonic
        self._revision = -1
        self._departures: deque[QueuesChange] = deque(maxlen=MAX_DEPARTURES)
        self._lost: dict[str, float] = {}
        """Lost topics and when they were lost, oldest first."""
        self.last = Symptoms()
        state.change_log.listen(self._on_change)

    async def count(self) -> None:
        """Counts anew if the routes changed or a lost topic's time is up."""
        now = self._monotonic()
        for topic in [topic for topic, since in self._lost.items() if now - since >= LOST_SECONDS]:
            del self._lost[topic]
            self._revision = -1
        if self._revision == self._state.revision:
            return
        state, tables, index = self._state, self._state.tables, self._state.index
        self._revision = state.revision
        departures, self._departures = self._departures, deque(maxlen=MAX_DEPARTURES)
        groups, names = tables.broker_addr_table, index.names_of_groups()
        topics, find = tables.topic_queue_table, index.queue_datas.find

        def counted() -> tuple[Symptoms, list[str]]:
            addresses = [member.broker_addr for group in groups.values() for member in group.members]
            found = Symptoms(
                unwritable_topics=_unwritable(topics, groups, find, names),
                groups_without_master=sum(not group.has_master for group in groups.values()),
                local_brokers=len(unreachable_addresses(addresses)),
            )
            return found, _lost(topics, departures, names)

        found, lost = await self._reader.run(counted)
        self._lost = {topic: since for topic, since in self._lost.items() if topic not in topics}
        for topic in lost[: MAX_LOST_TOPICS - len(self._lost)]:
            self._lost.setdefault(topic, now)
        self.last = found._replace(lost_topics=len(self._lost))

    async def run(self) -> None:
        """Counts again and again. Runs until cancelled."""
        while True:
            await self.count()
            await asyncio.sleep(PERIOD_SECONDS)

    def _on_change(self, change: Change) -> None:
        rows = (row for row in change.rows if isinstance(row, QueuesChange) and row.after is None)
        self._departures.extend(row for row in rows if row.reason not in _BY_WILL)


def _unwritable(
    topics: PersistentMap[str, TopicQueues],
    groups: Mapping[BrokerKey, BrokerData],
    find: Callable[[bytes], QueueData | None],
    names: Collection[str],
) -> int:
    """Counts application topics that nobody can write. A topic without any permission carries no messages."""
    writable: set[bytes] = set()
    count = 0
    for topic, fragments in paced(topics.rows(), ROWS_AT_ONCE):
        if writable.isdisjoint(fragments):
            found = [(fragment, find(fragment)) for fragment in fragments]
            writable.update(fragment for fragment, queues in found if _is_writable(queues, groups))
            is_for_messages = any(queues is not None and queues.perm & (READ | WRITE) for _, queues in found)
            count += is_for_messages and writable.isdisjoint(fragments) and is_application(topic, names)
    return count


def _is_writable(queues: QueueData | None, groups: Mapping[BrokerKey, BrokerData]) -> bool:
    group = groups.get(queues.broker) if queues is not None else None
    if queues is None or group is None:
        return True  # the group is changing, and the next count knows
    return group.has_master and queues.is_writable_under(group.write)


def _lost(topics: Mapping[str, TopicQueues], departures: Collection[QueuesChange], names: frozenset[str]) -> list[str]:
    lost: list[str] = []
    for row in departures:
        named_after = names.union(row.key)
        lost += [topic for topic in paced(row.topics) if topic not in topics and is_application(topic, named_after)]
    return lost
