"""RegistrationService: requests as registrations, and results as messages."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Collection, Container, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import NamedTuple

from namesrv_api.v1 import registration_service_pb2, route_data_pb2
from namesrv_api.v1 import registration_service_pb2 as pb

from groundwork.shares import Sharer, Shares
from groundwork.topic_names import MAX_MAPPED_QUEUES, MAX_PERM, MAX_QUEUE_NUMS
from namesrv import limits
from namesrv.app import field_rules
from namesrv.app.access import NamedBrokers, caller_of, need, owner_of, sharer_of
from namesrv.app.channels import ChannelStreams
from namesrv.app.counters import Kind, RegistrationCounter, Result, kind_of
from namesrv.app.event_log import RegistrationLog, log_registered, log_removed, log_topic_registered
from namesrv.app.field_rules import check_name
from namesrv.app.quotas import FairShares
from namesrv.app.writer import INLINE_TOPICS, LARGE_TOPICS, TableWriter
from namesrv.core.changes import Cause
from namesrv.core.errors import (
    FieldProblems,
    Refused,
    crc32_not_match,
    invalid_field,
    limit_exceeded,
)
from namesrv.core.model import (
    ORDER_TOPIC_CONFIG,
    BrokerKey,
    DataVersion,
    QueueNumbers,
    Registration,
    RemovalReason,
    ReportedQueues,
    StaticMapping,
)
from namesrv.core.pace import breathe, paced
from namesrv.core.registrations import QUEUES_LIKE_A_TOPIC, UnreadTopics
from namesrv.core.routes import Routes
from namesrv.engines.api import doubt_of, may_repeat
from namesrv.grpc_api.handlers import Context

# Mappings of static topics in registrations: every rule on them, with an error that names field and limit.


def static_mapping(where: str, topic: str, message: route_data_pb2.StaticTopicMapping) -> StaticMapping:
    """Checks a mapping.

    Args:
        where: Path of the mapping in the request.
        topic: Whose it is, for errors.

    Raises:
        INVALID_FIELD: A part breaks its rule.
    """
    if message.scope:
        check_name(f"{where}.scope", message.scope)
    for part in ("total_queue_nums", "epoch"):
        if getattr(message, part) < 0:
            raise invalid_field(f"{where}.{part}", f"is {getattr(message, part)} for {topic!r}, must not be negative")
    topic_ids, broker_ids = message.topic_queue_ids, message.broker_queue_ids
    if len(topic_ids) != len(broker_ids):
        problem = f"has {len(broker_ids)} queues for {topic!r}, must have {len(topic_ids)}, as many as topic_queue_ids"
        raise invalid_field(f"{where}.broker_queue_ids", problem)
    queue_ids: list[tuple[int, int]] = []
    last = -1
    for topic_id, broker_id in paced(zip(topic_ids, broker_ids, strict=True)):
        if not 0 <= topic_id < message.total_queue_nums:
            problem = f"has {topic_id} for {topic!r}, must be 0 to {message.total_queue_nums - 1}, total_queue_nums - 1"
            raise invalid_field(f"{where}.topic_queue_ids", problem)
        if topic_id <= last:
            raise invalid_field(f"{where}.topic_queue_ids", f"has {topic_id} after {last} for {topic!r}, must ascend")
        if not 0 <= broker_id < MAX_QUEUE_NUMS:
            problem = f"has {broker_id} for {topic!r}, must be 0 to {MAX_QUEUE_NUMS - 1}"
            raise invalid_field(f"{where}.broker_queue_ids", problem)
        queue_ids.append((topic_id, broker_id))
        last = topic_id
    return StaticMapping(message.scope, message.total_queue_nums, message.epoch, message.dirty, tuple(queue_ids))


# Requests of RegistrationService to records: every rule on input, with an error that names field and limit.

KNOWN_IDENTITIES = 16_384
"""Brokers whose identity is not checked again: the checks take half the time of a heartbeat. Some 10 MB at most."""


class BrokerIdentity(NamedTuple):
    """Which broker a request is about."""

    broker: BrokerKey
    broker_id: int
    broker_addr: str


class TopicsRead(dict[str, ReportedQueues]):
    """Topics of one registration that have been read so far."""

    mapped_queues = 0
    """Queues in the mappings of its static topics."""

    def add_mapped(self, count: int) -> None:
        """Counts queues of one more mapping. Raises LIMIT_EXCEEDED."""
        self.mapped_queues += count
        if self.mapped_queues > MAX_MAPPED_QUEUES:
            raise limit_exceeded("queues in mappings of one registration", self.mapped_queues, MAX_MAPPED_QUEUES)


def broker_identity(message: route_data_pb2.BrokerIdentity) -> BrokerIdentity:
    """Checks a BrokerIdentity. Raises INVALID_FIELD."""
    broker_id = message.broker_id if message.HasField("broker_id") else None
    return _checked_identity(message.cluster_name, message.broker_name, broker_id, message.broker_addr)


@lru_cache(KNOWN_IDENTITIES)
def _checked_identity(cluster_name: str, broker_name: str, broker_id: int | None, broker_addr: str) -> BrokerIdentity:
    problems = FieldProblems()
    with problems:
        field_rules.check_name("broker.cluster_name", cluster_name)
    with problems:
        field_rules.check_name("broker.broker_name", broker_name)
    with problems:
        broker_id = _checked_broker_id(broker_id)
    with problems:
        field_rules.check_address("broker.broker_addr", broker_addr)
    problems.raise_any()
    assert broker_id is not None
    return BrokerIdentity(BrokerKey(cluster_name, broker_name), broker_id, broker_addr)


def _checked_broker_id(broker_id: int | None) -> int:
    if broker_id is None:
        raise invalid_field("broker.broker_id", "is missing; 0 is the master, a slave has a higher id")
    if broker_id < 0:
        raise invalid_field("broker.broker_id", f"is {broker_id}, must not be negative")
    return broker_id


def data_version(field: str, message: route_data_pb2.DataVersion) -> DataVersion:
    """Checks a DataVersion. Raises INVALID_FIELD if timestamp or counter is missing or negative."""
    timestamp_millis, counter = message.timestamp_millis, message.counter
    if timestamp_millis > 0 and counter > 0:  # so both are there
        return DataVersion(timestamp_millis, counter, message.state_version)
    problems = FieldProblems()
    for part in ("timestamp_millis", "counter"):
        with problems:
            if not message.HasField(part):
                raise invalid_field(f"{field}.{part}", "is missing; a DataVersion needs timestamp_millis and counter")
            if getattr(message, part) < 0:
                raise invalid_field(f"{field}.{part}", f"is {getattr(message, part)}, must not be negative")
    problems.raise_any()
    return DataVersion(timestamp_millis, counter, message.state_version)


def read_registration(request: registration_service_pb2.RegisterBrokerRequest) -> Registration:
    """Checks all of a registration but its topics, which are not in what it returns.

    Raises:
        INVALID_FIELD: A field is missing or breaks its rule.
        LIMIT_EXCEEDED: There are too many topics or filter servers.
    """
    field_rules.check_topic_count(len(request.topic_configs))  # before anything waits
    problems = FieldProblems()
    servers, base_version, timeout_seconds = None, None, None
    with problems:
        identity = broker_identity(request.broker)
    with problems:
        if request.HasField("ha_server_addr"):
            field_rules.check_address("ha_server_addr", request.ha_server_addr)
    with problems:
        if request.HasField("zone_name"):
            field_rules.check_name("zone_name", request.zone_name)
    with problems:
        version = data_version("data_version", request.data_version)
    with problems:
        servers = filter_servers(request)
    with problems:
        if request.HasField("base_version"):
            base_version = data_version("base_version", request.base_version)
    with problems:
        timeout_seconds = heartbeat_timeout_seconds(request)
    problems.raise_any()
    return Registration(
        broker=identity.broker,
        broker_id=identity.broker_id,
        broker_addr=identity.broker_addr,
        data_version=version,
        topic_configs=None,
        ha_server_addr=request.ha_server_addr if request.HasField("ha_server_addr") else None,
        filter_servers=servers,
        channel_id=request.channel_id if request.HasField("channel_id") else None,
        base_version=base_version,
        zone_name=request.zone_name if request.HasField("zone_name") else None,
        enable_acting_master=request.enable_acting_master if request.HasField("enable_acting_master") else None,
        timeout_seconds=timeout_seconds,
    )


def read_topics(messages: Collection[route_data_pb2.TopicConfig], known_topics: Container[str]) -> TopicsRead:
    """Checks topic configurations and returns them.

    Args:
        known_topics: Names that have been checked before: the names in the topic table.

    Raises:
        INVALID_FIELD: One breaks a rule, or a topic is there twice.
        LIMIT_EXCEEDED: There are too many, or queues in their mappings.
    """
    read = TopicsRead()
    field_rules.check_topic_count(len(messages))
    shared: dict[QueueNumbers, QueueNumbers] = {}  # checked before; a tuple for each topic would take a hundred bytes
    problems = FieldProblems()
    for index, message in paced(enumerate(messages)):
        topic = message.topic
        try:  # a with block for each of 200,000 topics would take a tenth of the time
            if topic not in known_topics:
                field_rules.check_topic(f"topic_configs[{index}].topic", topic)
            if topic in read:
                raise invalid_field(f"topic_configs[{index}].topic", f"{topic!r} is there twice")
            numbers = message.read_queue_nums, message.write_queue_nums, message.perm, message.topic_sys_flag
            checked = shared.get(numbers)
            if checked is None:
                _check_queue_numbers(f"topic_configs[{index}]", f"the topic {topic!r}", message)
                checked = numbers
                if 0 not in numbers[:3]:  # zero may mean absent, which is for each message to be looked at
                    shared[numbers] = numbers
            if message.HasField("mapping"):
                read.add_mapped(len(message.mapping.topic_queue_ids))
                mapping = static_mapping(f"topic_configs[{index}].mapping", topic, message.mapping)
                read[topic] = (*checked, mapping)
                breathe()
            else:
                read[topic] = checked
        except Refused as error:
            problems.add(error)
    problems.raise_any()
    return read


def check_given_channel(channel_id: str, why: str) -> None:
    """Raises INVALID_FIELD, and not CHANNEL_GONE, for a request without a channel: it is not to open another one."""
    if not channel_id:
        raise invalid_field("channel_id", f"is missing; {why}")


def check_body_crc32(request: registration_service_pb2.RegisterBrokerRequest) -> None:
    """Checks the topic configurations against body_crc32; 0 or absent checks nothing. Raises CRC32_NOT_MATCH."""
    if not request.body_crc32:
        return
    actual = 0
    for config in paced(request.topic_configs):
        numbers = f"{config.read_queue_nums} {config.write_queue_nums} {config.perm} {config.topic_sys_flag}"
        actual = zlib.crc32(f"{config.topic} {numbers}\n".encode(), actual)
    if actual != request.body_crc32:
        raise crc32_not_match(request.body_crc32, actual)


def filter_servers(request: registration_service_pb2.RegisterBrokerRequest) -> tuple[str, ...] | None:
    """The filter servers of a registration; None if they are to stay as they are.

    Raises:
        INVALID_FIELD: One is no address.
        LIMIT_EXCEEDED: There are too many.
    """
    if not request.HasField("filter_servers"):
        return None
    addresses = tuple(request.filter_servers.filter_servers)
    if len(addresses) > limits.MAX_FILTER_SERVERS:
        raise limit_exceeded("filter servers", len(addresses), limits.MAX_FILTER_SERVERS)
    problems = FieldProblems()
    for index, address in enumerate(addresses):
        with problems:
            field_rules.check_address(f"filter_servers.filter_servers[{index}]", address)
    problems.raise_any()
    return addresses


def heartbeat_timeout_seconds(request: registration_service_pb2.RegisterBrokerRequest) -> float | None:
    """How long the broker asks to be given; None if it does not. Raises INVALID_FIELD."""
    if not request.HasField("heartbeat_timeout_millis"):
        return None
    millis = request.heartbeat_timeout_millis
    lowest, highest = limits.MIN_HEARTBEAT_TIMEOUT_MILLIS, limits.MAX_HEARTBEAT_TIMEOUT_MILLIS
    if not lowest <= millis <= highest:
        raise invalid_field("heartbeat_timeout_millis", f"is {millis}, must be {lowest} to {highest}")
    return millis / 1000


def topic_queues(request: registration_service_pb2.RegisterTopicRequest) -> dict[BrokerKey, QueueNumbers]:
    """Checks the topic and the queues of a RegisterTopicRequest, by the rules of a registration.

    Raises:
        INVALID_FIELD: A part breaks its rule, there are no queues, or a group is there twice.
        LIMIT_EXCEEDED: There are too many groups.
    """
    count = len(request.queue_datas)
    if count > limits.MAX_QUEUE_DATAS_PER_TOPIC:
        raise limit_exceeded("groups of one topic", count, limits.MAX_QUEUE_DATAS_PER_TOPIC)
    problems = FieldProblems()
    with problems:
        field_rules.check_topic("topic", request.topic)
    with problems:
        if count == 0:
            raise invalid_field("queue_datas", "is empty; name the queues of at least one broker group")
    queues: dict[BrokerKey, QueueNumbers] = {}
    for index, message in enumerate(request.queue_datas):
        where = f"queue_datas[{index}]"
        with problems:
            broker, numbers = _queue_data(where, message)
            if broker in queues:
                name = f"{broker.broker_name!r} of cluster {broker.cluster_name!r}"
                raise invalid_field(f"{where}.broker_name", f"{name} is there twice")
            queues[broker] = numbers
    problems.raise_any()
    return queues


def unregister_reason(reason: route_data_pb2.RemovalReason) -> RemovalReason:
    """The reason that a caller may give for an unregistration. Raises INVALID_FIELD."""
    match reason:
        case route_data_pb2.REMOVAL_REASON_UNSPECIFIED | route_data_pb2.REMOVAL_REASON_UNREGISTERED:
            return RemovalReason.UNREGISTERED
        case route_data_pb2.REMOVAL_REASON_BROKER_DOWN:
            return RemovalReason.BROKER_DOWN
        case _:
            raise invalid_field("reason", f"is {reason}, only UNREGISTERED and BROKER_DOWN can be given")


def _queue_data(where: str, message: route_data_pb2.QueueData) -> tuple[BrokerKey, QueueNumbers]:
    field_rules.check_name(f"{where}.cluster_name", message.cluster_name)
    field_rules.check_name(f"{where}.broker_name", message.broker_name)
    _check_queue_numbers(where, f"the group {message.broker_name!r}", message)
    for part in ("reported_perm", "mapping"):
        if message.HasField(part):
            raise invalid_field(f"{where}.{part}", "is set; only answers have it")
    numbers = message.read_queue_nums, message.write_queue_nums, message.perm, message.topic_sys_flag
    return BrokerKey(message.cluster_name, message.broker_name), numbers


def _check_queue_numbers(
    where: str, whose: str, message: route_data_pb2.TopicConfig | route_data_pb2.QueueData
) -> None:
    problems = FieldProblems()
    for part, highest in (
        ("read_queue_nums", MAX_QUEUE_NUMS),
        ("write_queue_nums", MAX_QUEUE_NUMS),
        ("perm", MAX_PERM),
    ):
        with problems:
            if not message.HasField(part):
                raise invalid_field(f"{where}.{part}", f"is missing for {whose}")
            if not 0 <= getattr(message, part) <= highest:
                value = getattr(message, part)
                raise invalid_field(f"{where}.{part}", f"is {value} for {whose}, 0 to {highest}")
    with problems:
        if message.topic_sys_flag < 0:
            raise invalid_field(f"{where}.topic_sys_flag", f"is {message.topic_sys_flag}, must not be negative")
    problems.raise_any()


# RegistrationService: what brokers and their agents call.


class RegistrationServicer:
    """Checks requests, has the tables changed, answers."""

    inline_calls = ("QueryDataVersion", "BrokerHeartbeat")
    """Calls that never wait."""

    def __init__(
        self,
        routes: Routes,
        writer: TableWriter,
        channels: ChannelStreams,
        idle_timeout_millis: int,
        *,
        tally: RegistrationCounter | None = None,
        registered_topics: Shares | None = None,
    ) -> None:
        self._routes, self._state = routes, routes.state
        self._writer = writer
        self._channels = channels
        self._brokers = NamedBrokers(routes.state)
        self._registered_topics = registered_topics or FairShares.of().registered_topics
        self._idle_timeout_millis = idle_timeout_millis
        self._tally = tally or RegistrationCounter()
        self._log = RegistrationLog()

    async def RegisterBroker(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.RegisterBrokerRequest, context: Context
    ) -> pb.RegisterBrokerResponse:
        """REGISTER_BROKER, 103."""
        room, broker = self._room_for(request, sharer_of(context)), request.broker
        refusals = self._log.refusals(broker.cluster_name, broker.broker_name, broker.broker_addr, context.peer())
        with refusals, self._tally.counting(kind_of(request)) as outcome, room:
            answer = await self._register(request, context)
            outcome.result = _result(changed=answer.changed)
            return answer

    async def _register(self, request: pb.RegisterBrokerRequest, context: Context) -> pb.RegisterBrokerResponse:
        """Refuses a request that breaks a rule before it waits for the tables. Most have topics that do not count."""
        registration = read_registration(request)
        self._check_live_brokers(registration)
        caller, unread = sharer_of(context).name, self._unread(request)
        if not request.body_crc32 or unread.topics <= INLINE_TOPICS:
            check_body_crc32(request)
        else:
            await self._writer.read(partial(check_body_crc32, request), caller, is_large=unread.topics > LARGE_TOPICS)
        cause, owner = Cause("RegisterBroker", caller_of(context)), owner_of(context)
        change = self._routes.registrations.register_broker(registration, cause, owner, unread)
        result = await self._writer.read_and_apply(change, caller)
        log_registered(registration, result, self._state.revision)
        return pb.RegisterBrokerResponse(
            header=self._state.header(),
            ha_server_addr=result.ha_server_addr,
            master_addr=result.master_addr,
            generation=result.generation,
            changed=result.changed,
            order_topic_config=self._order_topic_config(),
        )

    def _room_for(self, request: pb.RegisterBrokerRequest, sharer: Sharer) -> AbstractContextManager[None]:
        """Counts the topics of a request for as long as the context lasts: from before they are read until the answer.

        Raises:
            OVERLOADED: There are too many, with those of other requests of its caller or of all.
        """
        count = len(request.topic_configs)
        return self._registered_topics.holding(sharer, count) if count else nullcontext()

    def _unread(self, request: pb.RegisterBrokerRequest) -> UnreadTopics:
        topics = request.topic_configs
        count = len(topics)
        if count <= INLINE_TOPICS:
            count += sum(len(topic.mapping.topic_queue_ids) for topic in topics) // QUEUES_LIKE_A_TOPIC
        return UnreadTopics(count, lambda: read_topics(topics, self._state.tables.topic_queue_table))

    def _check_live_brokers(self, registration: Registration) -> None:
        live = self._state.tables.broker_live_table
        if len(live) >= limits.MAX_LIVE_BROKERS and registration.live_key not in live:
            raise limit_exceeded("live brokers", len(live) + 1, limits.MAX_LIVE_BROKERS)

    async def UnregisterBroker(  # noqa: N802
        self, request: pb.UnregisterBrokerRequest, context: Context
    ) -> pb.UnregisterBrokerResponse:
        """UNREGISTER_BROKER, 104."""
        identity = broker_identity(request.broker)
        reason = unregister_reason(request.reason)
        generation = request.generation if request.HasField("generation") else None
        cause = Cause("UnregisterBroker", caller_of(context))
        change = self._routes.removals.unregister_broker(
            identity.broker, identity.broker_addr, reason, generation, cause
        )
        removed = await self._writer.apply(change, sharer_of(context).name)
        for gone in removed:
            log_removed(gone)
        return pb.UnregisterBrokerResponse(header=self._state.header(), removed=bool(removed))

    async def QueryDataVersion(  # noqa: N802
        self, request: pb.QueryDataVersionRequest, context: Context
    ) -> bytes:
        """QUERY_DATA_VERSION, 322."""
        with self._tally.counting("query") as outcome:
            identity = broker_identity(request.broker)
            version = data_version("data_version", request.data_version)
            changed, held = self._routes.heartbeats.query_data_version(*identity, version)
            outcome.result = _result(changed=changed)
        after_header = _after_header(held, changed=changed)
        if not changed:  # else it registers now, and asks with another version
            self._may_repeat(context, identity, "query", after_header)
        return self._state.header_fragment() + after_header

    async def BrokerHeartbeat(  # noqa: N802
        self, request: pb.BrokerHeartbeatRequest, context: Context
    ) -> bytes:
        """BROKER_HEARTBEAT, 904."""
        with self._tally.counting("heartbeat") as outcome:
            identity = broker_identity(request.broker)
            self._routes.heartbeats.broker_heartbeat(*identity)
            outcome.result = "unchanged"
        self._may_repeat(context, identity, "heartbeat", b"")
        return self._state.header_fragment()  # all of a BrokerHeartbeatResponse

    async def RegisterTopic(  # noqa: N802
        self, request: pb.RegisterTopicRequest, context: Context
    ) -> pb.RegisterTopicResponse:
        """REGISTER_TOPIC_IN_NAMESRV, 217."""
        queues = topic_queues(request)
        cause = Cause("RegisterTopic", caller_of(context))
        change = self._routes.registrations.register_topic(request.topic, queues, cause)
        changed = await self._writer.apply(change, sharer_of(context).name)
        if changed:
            log_topic_registered(request.topic, len(queues), self._state.revision)
        return pb.RegisterTopicResponse(header=self._state.header(), changed=changed)

    async def OpenChannel(  # noqa: N802
        self, request: pb.OpenChannelRequest, context: Context
    ) -> AsyncIterator[pb.OpenChannelResponse]:
        """What RocketMQ's TCP connection and BrokerHousekeepingService were."""
        if len(request.holder) > limits.MAX_HOLDER_LENGTH:
            raise invalid_field("holder", f"has {len(request.holder)} characters, at most {limits.MAX_HOLDER_LENGTH}")
        opening = self._channels.open(request.holder, sharer_of(context), partial(doubt_of, context))
        del request  # a channel lasts, and does not need its request
        async with opening as (channel_id, events):
            need(lambda principal: principal.check_brokers(self._brokers.of_channel(channel_id)))
            opened = pb.ChannelOpened(channel_id=channel_id, idle_timeout_millis=self._idle_timeout_millis)
            yield pb.OpenChannelResponse(opened=opened)
            while True:
                event = await events.get()
                yield event
                if event.HasField("closing"):
                    return

    async def HandOverChannel(  # noqa: N802
        self, request: pb.HandOverChannelRequest, _context: Context
    ) -> pb.HandOverChannelResponse:
        """The end of a channel is announced; RocketMQ has nothing like it."""
        check_given_channel(request.channel_id, "a handover is of a channel")
        brokers = self._routes.heartbeats.hand_over_channel(request.channel_id)
        return pb.HandOverChannelResponse(
            header=self._state.header(),
            channel_grace_millis=round(self._state.behaviour.channel_grace_seconds * 1000),
            broker_count=brokers,
        )

    def _may_repeat(self, context: Context, identity: BrokerIdentity, kind: Kind, after_header: bytes) -> None:
        """A broker was seen. While its row is the same, so is the answer, but for the header."""
        routes, tally, live = self._routes, self._tally, self._state.live_broker(*identity)

        def again() -> bytes | None:
            if live is None or not routes.heartbeats.heard_again(live):
                return None
            tally.count(kind, "unchanged")
            return routes.state.header_fragment() + after_header

        may_repeat(context, again)

    def _order_topic_config(self) -> Mapping[str, str]:
        wanted = self._state.behaviour.return_order_topic_config_to_broker
        return self._state.kv_config.entries(ORDER_TOPIC_CONFIG) if wanted else {}


def _result(*, changed: bool) -> Result:
    return "changed" if changed else "unchanged"


@lru_cache(KNOWN_IDENTITIES)
def _after_header(held: DataVersion | None, *, changed: bool) -> bytes:
    """A QueryDataVersionResponse without its header. Each broker gets the same again and again."""
    if held is None:
        return pb.QueryDataVersionResponse(changed=changed).SerializeToString()
    version = route_data_pb2.DataVersion(
        timestamp_millis=held.timestamp_millis, counter=held.counter, state_version=held.state_version
    )
    return pb.QueryDataVersionResponse(changed=changed, data_version=version).SerializeToString()
