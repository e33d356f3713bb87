"""What brokers' calls mean, whichever protocol they come over, and how calls are counted."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Literal, Self, get_args

from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv import limits
from namesrv.app.access import principal_name
from namesrv.app.event_log import ROUTINE, RegistrationLog, log_removed, log_topic_registered
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause
from namesrv.core.errors import Refused, limit_exceeded
from namesrv.core.model import (
    ORDER_TOPIC_CONFIG,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    QueueNumbers,
    RegisterBrokerResult,
    Registration,
    RemovalReason,
)
from namesrv.core.registrations import BrokerRegistration, TopicRegistration, UnreadTopics
from namesrv.core.removals import unregister_broker
from namesrv.core.state import RouteState
from namesrv.engines.api import Again, FrameHits
from namesrv_common.server.call_metrics import DURATION_BUCKETS

# Numbers that the event loop writes and the collector of metrics reads.

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds: from a watch that is told at once to one whose reader is about to be cut."""

Kind = Literal["full", "increment", "refresh", "query", "heartbeat"]
"""The kinds of registrations. A refresh is an increment without topics."""

Result = Literal["changed", "unchanged", "refused"]
"""The outcomes of a registration."""


class DurationCounter:
    """A histogram of durations."""

    def __init__(self, bounds: tuple[float, ...] = LAG_BUCKETS) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Sum of all, seconds."""

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def with_more(self, count: int, seconds: float) -> DurationCounter:
        """A copy with so many more, which took this time together and count as equally long."""
        copy = DurationCounter(self.bounds)
        copy._counts = self._counts.copy()
        copy._counts[bisect_left(self.bounds, seconds / count)] += count
        copy.total = self.total + seconds
        return copy

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets in Prometheus' form: upper bound, and how many were at most as long."""
        cumulative, buckets = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            cumulative += count
            buckets.append((bound, float(cumulative)))
        return buckets


class Outcome:
    """The outcome of a registration: a context that counts it at its end."""

    __slots__ = ("_count", "_kind", "result")

    def __init__(self, count: Callable[[Kind, Result, object], None], kind: Kind) -> None:
        self._count = count
        self._kind = kind
        self.result: Result = "refused"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: object, _traceback: object) -> None:
        self._count(self._kind, self.result, error)


class RemotingCounter:
    """The numbers of requests of RocketMQ's protocol."""

    def __init__(self, hits: Callable[[], FrameHits] = dict) -> None:
        """Counts nothing yet.

        Args:
            hits: Answers that the engine gave by itself.
        """
        self._hits = hits
        self._durations = defaultdict[tuple[int, bool], DurationCounter](partial(DurationCounter, DURATION_BUCKETS))
        """Only known codes count, or others would fill memory."""

    def answered(self, code: int, seconds: float, *, is_refused: bool) -> None:
        self._durations[code, is_refused].add(seconds)

    def durations(self) -> dict[tuple[int, bool], DurationCounter]:
        """Seconds from a request to its answer, by request code and whether it was refused."""
        durations = self._durations.copy()
        for code, (count, seconds) in self._hits().items():
            durations[code, False] = durations[code, False].with_more(count, seconds)
        return durations


class RegistrationCounter:
    """The numbers of registrations by kind and outcome."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        # All begin at 0, or Prometheus would see no increase when the first of a kind is counted.
        self.counts: Counter[tuple[Kind, Result]] = Counter(dict.fromkeys(product(get_args(Kind), get_args(Result)), 0))
        self.topics_skipped = 0
        """Topics that were left out because they break a rule, where one odd topic must not refuse the others."""
        self._monotonic = monotonic
        self._refused_at: float | None = None
        self._skipped_at: float | None = None

    @property
    def refused_ago(self) -> float | None:
        """Seconds since a full registration was refused for a reason that the broker cannot fix by itself, or None.

        An agent repeats a refused increment in full at once, and opens a lost channel again.
        """
        return None if self._refused_at is None else self._monotonic() - self._refused_at

    @property
    def skipped_ago(self) -> float | None:
        """Seconds since topics were left out of a registration; None if none were."""
        return None if self._skipped_at is None else self._monotonic() - self._skipped_at

    def skipped(self, topics: int) -> None:
        """Counts topics that were left out of a registration."""
        self.topics_skipped += topics
        self._skipped_at = self._monotonic()

    def count(self, kind: Kind, result: Result, error: object = None) -> None:
        """Counts a registration, and remembers when an error refused a full one."""
        self.counts[kind, result] += 1
        if (kind, result) == ("full", "refused") and not (isinstance(error, Refused) and error.reason in ROUTINE):
            self._refused_at = self._monotonic()

    def counting(self, kind: Kind) -> Outcome:
        """Counts what happens in the context, with the outcome that it is given there; refused if it raises before."""
        return Outcome(self.count, kind)


def kind_of(request: pb.RegisterBrokerRequest) -> Kind:
    if not request.HasField("base_version"):
        return "full"
    return "increment" if request.topic_configs else "refresh"


# What brokers' calls mean.


@dataclass
class BrokerCalls:
    """Has the tables changed, and logs it. Callers are named as in the journal, and own their work."""

    state: RouteState
    writer: TableWriter
    tally: RegistrationCounter
    log: RegistrationLog = field(default_factory=RegistrationLog)

    def check_room(self, key: LiveKey) -> None:
        """Raises LIMIT_EXCEEDED if a broker at a new address would be one too many."""
        live = self.state.tables.broker_live_table
        if len(live) >= limits.MAX_LIVE_BROKERS and key not in live:
            raise limit_exceeded("live brokers", len(live) + 1, limits.MAX_LIVE_BROKERS)

    def known_topics(self, broker: BrokerKey) -> Container[str]:
        """Names that have been checked before."""
        index, tables = self.state.index, self.state.tables
        return index.topics_by_broker.get(broker) or tables.topic_queue_table  # the first is quicker

    def order_topic_config(self) -> Mapping[str, str]:
        """The ordered-topic configuration, if brokers get it."""
        wanted = self.state.behaviour.return_order_topic_config_to_broker
        return self.state.kv_config.entries(ORDER_TOPIC_CONFIG) if wanted else {}

    def again(
        self, live: BrokerLiveInfo, kind: Kind, answer: Callable[[], bytes], is_same: Callable[[], bool] = lambda: True
    ) -> Again:
        """What answers a call that comes again. It is a heartbeat while the broker's row and all else are the same."""

        def again() -> bytes | None:
            if not is_same() or not self.state.renew_unchanged(live):
                return None
            self.tally.count(kind, "unchanged")
            return answer()

        return again

    async def register(
        self, registration: Registration, unread: UnreadTopics, caller: str, owner: str
    ) -> RegisterBrokerResult:
        """REGISTER_BROKER, 103. Raises Refused as the writer and the change do."""
        cause = Cause("RegisterBroker", caller)
        change = BrokerRegistration(self.state, registration, cause, principal_name(), unread)
        result = await self.writer.read_and_apply(change, owner)
        self.log.registered(registration, result, self.state.revision)
        return result

    async def unregister(
        self,
        broker: BrokerKey,
        addr: str,
        caller: str,
        owner: str,
        *,
        reason: RemovalReason = RemovalReason.UNREGISTERED,
        generation: int | None = None,
    ) -> bool:
        """UNREGISTER_BROKER, 104. Returns whether there was such a broker."""
        cause = Cause("UnregisterBroker", caller)
        change = unregister_broker(self.state, broker, addr, reason, generation=generation, cause=cause)
        removed = await self.writer.apply(change, owner)
        log_removed(removed)
        return bool(removed)

    async def register_topic(
        self, topic: str, queues: Mapping[BrokerKey, QueueNumbers], caller: str, owner: str
    ) -> bool:
        """REGISTER_TOPIC_IN_NAMESRV, 217. Returns whether that changed something."""
        change = TopicRegistration(self.state, topic, queues, Cause("RegisterTopic", caller))
        changed = await self.writer.apply(change, owner)
        if changed:
            log_topic_registered(topic, len(queues), self.state.revision)
        return changed
