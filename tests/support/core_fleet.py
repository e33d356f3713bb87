"""A route info state on a virtual clock, and short ways to speak to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from namesrv_api.v1 import route_data_pb2

from namesrv.core.model import (
    Behaviour,
    BrokerKey,
    DataVersion,
    QueueNumbers,
    RegisterBrokerResult,
    Registration,
    RemovalReason,
    RemovedBroker,
    ReportedQueues,
    ReportedTopic,
    TopicTableFingerprint,
)
from namesrv.core.registrations import REGISTER_BROKER, BrokerRegistration, TopicRegistration, UnreadTopics
from namesrv.core.removals import on_channel_destroy, scan_not_active_broker, unregister_broker
from namesrv.core.state import NamesrvIdentity, RouteState
from tests.support.state_changes import apply_all_now, apply_now
from tests.support.virtual_clock import VirtualClock

CLUSTER = "DefaultCluster"
A = "127.0.0.1:10911"
B = "127.0.0.1:20911"
HA = "127.0.0.1:10912"
VERSION = DataVersion(1_000, 1)


def addrs_of(group: route_data_pb2.BrokerData) -> dict[int, str]:
    return {broker.broker_id: broker.broker_addr for broker in group.broker_addrs}


SMALL_FLEETS = Behaviour(mass_loss_min_brokers=3)
"""The guard at work in fleets of four brokers."""


class Fleet:
    """Registers and removes brokers with one call each."""

    def __init__(self, behaviour: Behaviour = SMALL_FLEETS) -> None:
        self.clock = VirtualClock()
        numbers = itertools.count(1)
        identity = NamesrvIdentity("ns-test", "000000000000001-00000000")
        self.serve(RouteState(identity, self.clock, lambda: f"channel-{next(numbers)}", behaviour=behaviour))
        self.topics_read = 0
        """Topics that were read while a registration was prepared."""

    def serve(self, state: RouteState) -> None:
        """Uses these tables from now on."""
        self.state = state

    def register(
        self,
        addr: str = A,
        broker_id: int = 0,
        topics: Iterable[str | ReportedTopic] = ("TopicTest",),
        *,
        name: str = "broker-a",
        cluster: str = CLUSTER,
        version: DataVersion = VERSION,
        ha: str | None = None,
        mark: TopicTableFingerprint | None = None,
        is_read: bool = True,
        principal: str = "",
        **fields: Any,
    ) -> RegisterBrokerResult:
        """Registers a broker; ``fields`` are others of the registration."""
        configs = dict((topic, (4, 4, 6, 0)) if isinstance(topic, str) else topic for topic in topics)
        registration = Registration(
            broker=BrokerKey(cluster, name),
            broker_id=broker_id,
            broker_addr=addr,
            data_version=version,
            topic_configs=configs if is_read else None,
            ha_server_addr=ha,
            table_fingerprint=mark,
            **fields,
        )
        unread = None if is_read else UnreadTopics(lambda: len(configs), lambda: self._read(configs))
        change = BrokerRegistration(self.state, registration, REGISTER_BROKER, principal, unread)
        return apply_now(change)

    def _read(self, configs: dict[str, ReportedQueues]) -> dict[str, ReportedQueues]:
        self.topics_read += len(configs)
        return configs

    def register_topic(self, topic: str, queues: Mapping[BrokerKey, QueueNumbers]) -> bool:
        return apply_now(TopicRegistration(self.state, topic, queues))

    def unregister(
        self, addr: str = A, *, name: str = "broker-a", cluster: str = CLUSTER, generation: int | None = None
    ) -> RemovedBroker | None:
        key = BrokerKey(cluster, name)
        removal = unregister_broker(self.state, key, addr, RemovalReason.UNREGISTERED, generation=generation)
        return next(iter(apply_now(removal)), None)

    def end_channel(self, channel_id: str) -> list[RemovedBroker]:
        self.state.liveness.end_channel(channel_id)
        return apply_all_now(on_channel_destroy(self.state, [channel_id]))

    def scan(self) -> list[RemovedBroker]:
        return apply_all_now(scan_not_active_broker(self.state))

    def query(
        self, addr: str = A, broker_id: int = 0, *, name: str = "broker-a", version: DataVersion = VERSION
    ) -> tuple[bool, DataVersion | None]:
        return self.state.query_data_version(BrokerKey(CLUSTER, name), broker_id, addr, version)

    def route(self, topic: str = "TopicTest") -> route_data_pb2.TopicRouteData | None:
        encoded = self.state.route(topic)
        return None if encoded is None else route_data_pb2.TopicRouteData.FromString(encoded)

    def addrs(self, topic: str = "TopicTest") -> dict[int, str]:
        route = self.route(topic)
        assert route is not None, f"no route for {topic}"
        return addrs_of(route.broker_datas[0])

    @property
    def topics(self) -> set[str]:
        return set(self.state.tables.topic_queue_table)
