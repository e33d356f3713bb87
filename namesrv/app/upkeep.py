"""Background work: expiry scans, expired pins, and for metrics digests of the last minute and symptoms of clients."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

import structlog
from namesrv_api.v1 import registration_service_pb2

from namesrv.app.channels import ChannelStreams
from namesrv.app.event_log import log_removed
from namesrv.app.fair_queue import OWN
from namesrv.app.stall_detector import StallDetector
from namesrv.app.worker import Worker
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Change, QueuesChange
from namesrv.core.digests import FRONT, DigestedBroker, Position, RouteDigests
from namesrv.core.errors import Reason, Refused, overloaded
from namesrv.core.model import READ, WRITE, BrokerData, BrokerKey, QueueData, RemovalReason, TopicQueues
from namesrv.core.pace import paced
from namesrv.core.persistent_map import PersistentMap
from namesrv.core.pins import Pins
from namesrv.core.removals import scan_not_active_broker
from namesrv.core.state import RouteState
from namesrv_common.endpoints import unreachable_addresses
from namesrv_common.topic_names import is_application

# Scans for brokers and channels that have been silent for too long.

FIRST_SCAN_SECONDS = 5.0
"""When the first scan runs (RocketMQ: NamesrvController.initialize)."""

LOOK_SECONDS = 1.0
"""Longest time until a changed interval counts."""

_IDLE = registration_service_pb2.ChannelClosing.REASON_IDLE


async def scan_for_silent_brokers(
    state: RouteState,
    writer: TableWriter,
    channels: ChannelStreams,
    stall_detector: StallDetector,
    interval_seconds: Callable[[], float],
) -> None:
    """Scans again and again (RocketMQ: the schedule of scanNotActiveBroker). Runs until cancelled.

    Args:
        interval_seconds: Returns the time between two scans, which may change at any time; 0 stops them.
    """
    now = asyncio.get_running_loop().time
    last, longest = now(), FIRST_SCAN_SECONDS
    while True:
        await asyncio.sleep(min(interval_seconds() or LOOK_SECONDS, LOOK_SECONDS))
        interval = interval_seconds()
        if not interval or now() - last < min(interval, longest):
            continue
        stall_detector.check()
        removed = await writer.apply_each(scan_not_active_broker(state))
        log_removed(removed)
        for gone in removed:
            channel_id = gone.live.channel_id
            if channel_id is not None and not state.channels.bound(channel_id):
                channels.close(channel_id, _IDLE)  # so that a living agent behind it opens another and registers
        for channel_id in await writer.read(state.liveness.idle_channels, OWN):
            channels.close(channel_id, _IDLE)
        last, longest = now(), math.inf


# The expiry of pinned snapshots whose readers stopped asking.

PIN_CHECK_SECONDS = 5.0
"""Pause between two looks for pins whose lease has ended."""


async def drop_expired_pins(pins: Pins) -> None:
    """Drops those whose lease has ended. Runs until cancelled."""
    while True:
        await asyncio.sleep(PIN_CHECK_SECONDS)
        pins.drop_expired()


# Pages of digests. A thread computes missing digests until rows and digests are of one moment.

MAX_TRIES = 20
"""Most tries at a page while one of its groups changes all the time. Each takes some 2 ms for 1,000 topics."""


async def digest_page(
    digests: RouteDigests, reader: Worker, after: Position, limit: int, owner: str = OWN
) -> list[DigestedBroker]:
    """The brokers after a position, at most ``limit``, each with the digest of its group.

    Raises:
        OVERLOADED: A group changes faster than its digest can be made.
    """
    for _ in range(MAX_TRIES):
        if missing := digests.missing(after, limit):
            await reader.run(partial(digests.compute, missing), owner)
        page = digests.page(after, limit)
        if page is not None:
            return page
    raise overloaded("a broker group changes all the time, faster than its digest can be made")


# A number for all that brokers report, taken at each full minute: so metrics tell whether name servers differ.

MINUTE_MILLIS = 60_000
KEPT_MINUTES = 2
"""Scrapes of two name servers may lie on both sides of a full minute: the minute before is in both."""

DIGESTED_AT_ONCE = 500
"""Brokers of one moment in a sample: finding these takes the event loop a millisecond."""

NUMBER_BYTES = 6
"""Length of a sample: Prometheus' numbers are exact up to 53 bits."""

_log = structlog.get_logger(__name__)


class DigestSamples:
    """The newest samples. Name servers that hold the same of every broker have the same sample of the same minute.

    They have the same sample only if they hold the same intents, KV configuration and changeable settings, too.
    Each takes them at the same time, that of the wall clock: routes that change between two scrapes are no difference.
    """

    def __init__(
        self,
        state: RouteState,
        reader: Worker,
        wall_millis: Callable[[], int],
        settings: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._state = state
        self._reader = reader
        self._wall_millis = wall_millis
        self._settings = settings
        """Returns the settings that change over the wire."""
        self.by_minute: Mapping[int, int] = {}
        """Samples by the minute of the hour, 0 to 59. Replaced as a whole, for a thread that reads it."""

    def seconds_to_next(self) -> float:
        """How long it is until the next full minute."""
        return (MINUTE_MILLIS - self._wall_millis() % MINUTE_MILLIS) / 1000

    async def take(self) -> None:
        """Takes the sample of the nearest minute, and drops old ones. There is none if routes change too fast."""
        minute = round(self._wall_millis() / MINUTE_MILLIS)
        kept = {(minute - age) % 60 for age in range(1, KEPT_MINUTES)}
        samples = {earlier: value for earlier, value in self.by_minute.items() if earlier in kept}
        try:
            samples[minute % 60] = await self._number()
        except Refused as error:
            if error.reason != Reason.OVERLOADED:
                raise
            _log.info("no_digest_sample", reason=str(error))
        self.by_minute = samples

    async def _number(self) -> int:
        """A number for all digests. Raises OVERLOADED if routes change too fast."""
        sha256, position = hashlib.sha256(), FRONT
        sha256.update(await self._reader.run(self._of_operators))
        while brokers := await digest_page(self._state.digests, self._reader, position, DIGESTED_AT_ONCE):
            for broker in brokers:
                cluster_name, broker_name, broker_id = position = broker.position
                sha256.update(f"{cluster_name} {broker_name} {broker_id} {broker.live.broker_addr}\n".encode())
                sha256.update(broker.digest)
        return int.from_bytes(sha256.digest()[:NUMBER_BYTES])

    def _of_operators(self) -> bytes:
        """The changes of operators, in an encoding that is equal at name servers with equal changes."""
        intents = [(one.kind.name, str(one.key), one.ends_at_millis) for one in self._state.intents.intents.values()]
        changed = (sorted(intents, key=str), self._state.kv_config.namespaces, self._settings())
        return json.dumps(changed, sort_keys=True).encode()

    async def run(self) -> None:
        """Takes one now, which the next replaces, and one at each full minute. Runs until cancelled."""
        while True:
            await self.take()
            await asyncio.sleep(self.seconds_to_next())


# What producers and consumers suffer from: counted on a thread whenever the routes changed.

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
