"""The broker as it is now, and the registrations that tell name servers about it."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from broker_agent.settings import AgentSettings
from broker_agent.timing import Timing
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import MAX_STATE_VERSION, DataVersion, TopicConfig, TopicConfigTable, changed_topics
from broker_agent.topics.topic_service import version_message
from namesrv_common.topic_names import Labels

MAX_REGISTRATION_BYTES = 16 * 1024 * 1024
"""Largest registration that name servers take: 200,000 topics with names of 70 characters."""
_READ_AND_WRITE = 6


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The broker without its topics. Replaced whole when a role, a permission or the filter servers change."""

    cluster_name: str
    broker_name: str
    broker_id: int
    """0 is the master."""
    broker_addr: str
    """Where clients reach it, host:port."""
    ha_server_addr: str | None
    """Where slaves replicate from, host:port."""
    permission: int
    """What the broker allows: read 4, write 2."""
    zone_name: str | None = None
    """Zone of the broker; None if it has none."""
    enable_acting_master: bool | None = None
    """Whether a slave may stand in for a lost master; None if the broker says nothing of it."""
    labels: Labels = ()
    filter_servers: tuple[str, ...] = ()
    """Addresses, sorted."""
    changed_at_millis: int = 0
    """When the permission changed last. The version that is registered is never older: a name server takes topics only
    with a version that it does not hold."""
    state_version: int | None = None
    """Raised by a change of role; None if the topic table's own is in force."""

    @classmethod
    def of(cls, settings: AgentSettings) -> BrokerState:
        return cls(
            settings.cluster,
            settings.broker_name,
            settings.broker_id,
            settings.broker_addr,
            settings.ha_server_addr,
            settings.broker_permission,
            zone_name=settings.zone_name,
            enable_acting_master=settings.enable_acting_master or None,
            labels=tuple((key, value) for key, _, value in (label.partition("=") for label in settings.label)),
        )

    @property
    def is_slave(self) -> bool:
        return self.broker_id != 0

    def identity(self) -> route_data_pb2.BrokerIdentity:
        """The broker as every call names it."""
        return route_data_pb2.BrokerIdentity(
            cluster_name=self.cluster_name,
            broker_name=self.broker_name,
            broker_id=self.broker_id,
            broker_addr=self.broker_addr,
        )

    def version_of(self, table: TopicConfigTable) -> DataVersion:
        """The version that the table is registered under."""
        version = table.data_version
        states = [state for state in (version.state_version, self.state_version) if state is not None]
        return DataVersion(
            max(version.timestamp_millis, self.changed_at_millis), version.counter, max(states, default=None)
        )


class Registration:
    """Broker and topics at one moment, for any name server: no message names a channel yet.

    Messages are made once for all name servers, when they are first asked for.
    """

    def __init__(self, broker: BrokerState, table: TopicConfigTable) -> None:
        self.broker = broker
        self.table = table
        self.version = broker.version_of(table)
        self._making = threading.Lock()
        self._full: pb.RegisterBrokerRequest | None = None
        self._increments: WeakKeyDictionary[Registration, pb.RegisterBrokerRequest | None] = WeakKeyDictionary()

    def same_as(self, other: Registration | None) -> bool:
        """Whether a name server that holds the other one holds this one."""
        return other is not None and self.broker == other.broker and self.version == other.version

    def full(self) -> pb.RegisterBrokerRequest:
        """The whole table."""
        with self._making:
            if self._full is None:
                self._full = self._message(self.table.topics)
            return self._full

    def increment_from(self, held: Registration) -> pb.RegisterBrokerRequest | None:
        """Only the difference from a registration that a name server holds; None if that takes the whole table.

        Between two equal ones it has no topics: it renews, and brings the answer of a registration.
        """
        with self._making:
            if held not in self._increments:
                self._increments[held] = self._made_increment(held)
            return self._increments[held]

    def _made_increment(self, held: Registration) -> pb.RegisterBrokerRequest | None:
        if self.broker.identity() != held.broker.identity() or self.broker.permission != held.broker.permission:
            return None
        topics = () if self.table is held.table else changed_topics(held.table, self.table)
        if topics is None or (topics and self.version == held.version):
            return None
        message = self._message(topics)
        message.base_version.CopyFrom(version_message(held.version))
        return message

    def _message(self, topics: Iterable[TopicConfig]) -> pb.RegisterBrokerRequest:
        topic_configs = [self._topic_message(topic) for topic in topics]
        broker = self.broker
        message = pb.RegisterBrokerRequest(
            broker=broker.identity(),
            ha_server_addr=broker.ha_server_addr,
            data_version=version_message(self.version),
            topic_configs=topic_configs,
            filter_servers=pb.FilterServerList(filter_servers=broker.filter_servers),
            body_crc32=body_crc32(topic_configs),
            zone_name=broker.zone_name,
            labels=pb.BrokerLabels(labels=dict(broker.labels)),
        )
        if broker.enable_acting_master is not None:
            message.enable_acting_master = broker.enable_acting_master
        return message

    def _topic_message(self, topic: TopicConfig) -> route_data_pb2.TopicConfig:
        """One topic as it is registered.

        No topic promises more than the broker allows: its permission is masked by the broker's. That is RocketMQ 5's
        rule (BrokerController.registerBrokerAll); version 4 replaced the topic's own.
        """
        downgraded = self.broker.permission & _READ_AND_WRITE != _READ_AND_WRITE
        return route_data_pb2.TopicConfig(
            topic=topic.topic_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm & self.broker.permission if downgraded else topic.perm,
            topic_sys_flag=topic.topic_sys_flag,
            mapping=topic.mapping,
        )


def body_crc32(topics: Iterable[route_data_pb2.TopicConfig]) -> int:
    """CRC-32 of topic configurations as the contract defines it (RocketMQ: bodyCrc32)."""
    crc = 0
    for topic in topics:
        numbers = f"{topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} {topic.topic_sys_flag}"
        crc = zlib.crc32(f"{topic.topic} {numbers}\n".encode(), crc)
    return crc


class CurrentBroker:
    """Holds the broker's state and makes registrations of it. While nothing changes, it returns the same one."""

    def __init__(self, state: BrokerState, topic_configs: TopicConfigManager, timing: Timing) -> None:
        self._topic_configs = topic_configs
        self._timing = timing
        self._lock = threading.Lock()
        self._changing_role = threading.Lock()
        self._before_role: Registration | None = None
        self.state = state
        """The broker without its topics. Replaced under the lock."""
        self._registration: Registration | None = None

    def registration(self) -> Registration:
        """What name servers should hold now. While a new role is made durable, that is the registration before it."""
        with self._lock:
            if self._before_role is not None:
                return self._before_role
            table = self._topic_configs.table
            current = self._registration
            if current is None or current.table is not table or current.broker is not self.state:
                self._registration = current = Registration(self.state, table)
            return current

    def change_role(self, broker_id: int, state_version: int | None = None) -> int:
        """Makes the broker a master or a slave.

        Args:
            broker_id: 0 for the master.
            state_version: That of the new role; one above the one in force by default.

        Returns:
            The state version in force.

        Raises:
            ValueError: The state version is below the one in force, or above the largest that there may be.
            Refused: The version could not be made durable; nothing has changed.
        """
        with self._changing_role:
            before = self.state.version_of(self._topic_configs.table).state_version or 0
            if state_version is not None and state_version < before:
                raise ValueError(f"is {state_version}, below {before}, which is in force")
            if state_version is not None and state_version > MAX_STATE_VERSION:
                raise ValueError(f"is {state_version}, above the limit of {MAX_STATE_VERSION}")
            self._before_role = self.registration()
            try:
                if state_version is None:
                    self._topic_configs.next_state_version()  # a disk may hang, so no registration waits for it
                after = before + 1 if state_version is None else state_version
                with self._lock:
                    self.state = replace(self.state, broker_id=broker_id, state_version=after)
                return after
            finally:
                self._before_role = None

    def change_permission(self, permission: int) -> None:
        """Changes what the broker allows. The table gets a version with the present time."""
        with self._lock:
            version = self.state.version_of(self._topic_configs.table)
            now = self._timing.wall_millis()
            self.state = replace(
                self.state, permission=permission, changed_at_millis=max(now, version.timestamp_millis + 1)
            )

    def change_filter_servers(self, addresses: tuple[str, ...]) -> bool:
        """Takes the addresses of the filter servers; returns whether they differ from those before."""
        with self._lock:
            if self.state.filter_servers == addresses:
                return False
            self.state = replace(self.state, filter_servers=addresses)
            return True
