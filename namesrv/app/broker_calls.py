"""What brokers' calls mean, whichever protocol they come over."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from namesrv import limits
from namesrv.app.access import principal_name
from namesrv.app.event_log import Kind, RegistrationCounter, RegistrationLog, log_removed, log_topic_registered
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause
from namesrv.core.errors import limit_exceeded
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
from namesrv.engines.api import Again


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
