"""RegistrationService: requests as registrations, and results as messages."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Collection, Container, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import ClassVar

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.app.access import FairShares, NamedBrokers, caller_of, need, sharer_of
from namesrv.app.broker_calls import BrokerCalls
from namesrv.app.channels import ChannelStreams
from namesrv.app.event_log import Kind, RegistrationCounter, kind_of
from namesrv.app.field_rules import (
    ADDRESS,
    ANYTHING,
    NAME,
    NOT_NEGATIVE,
    PROBLEM,
    TOPIC,
    Row,
    Rule,
    at_most,
    between,
    check,
    check_all,
    check_topic_count,
    given,
)
from namesrv.app.writer import INLINE_TOPICS, LARGE_TOPICS, TableWriter
from namesrv.core.errors import FieldProblems, Refused, crc32_not_match, invalid_field, limit_exceeded
from namesrv.core.model import (
    BrokerKey,
    DataVersion,
    QueueNumbers,
    Registration,
    RemovalReason,
    ReportedQueues,
    StaticMapping,
)
from namesrv.core.pace import paced, yield_point
from namesrv.core.registrations import QUEUES_LIKE_A_TOPIC, UnreadTopics
from namesrv.core.state import RouteState
from namesrv.engines.api import engine_call
from namesrv_common.server.rpc_handlers import Context
from namesrv_common.server.shares import Shares
from namesrv_common.topic_names import MAX_LABELS, MAX_PERM, MAX_QUEUE_NUMS, label_problem, shown_name

# Mappings of static topics in registrations: every rule on them, with an error that names field and limit.


def static_mapping(where: str, topic: str, message: route_data_pb2.StaticTopicMapping) -> StaticMapping:
    """Checks a mapping.

    Args:
        where: Path of the mapping in the request.
        topic: Whose it is, for errors.

    Raises:
        INVALID_FIELD: A part breaks its rule.
    """
    topic_ids, broker_ids, total = message.topic_queue_ids, message.broker_queue_ids, message.total_queue_nums

    def bad(part: str, problem: str) -> Refused:
        return invalid_field(f"{where}.{part}", problem)

    check((f"{where}.scope", message.scope or None, NAME))
    for part, number in (("total_queue_nums", total), ("epoch", message.epoch)):
        if number < 0:
            raise bad(part, f"is {number} for {topic!r}, must not be negative")
    if len(topic_ids) != len(broker_ids):
        must = f"must have {len(topic_ids)}, as many as topic_queue_ids"
        raise bad("broker_queue_ids", f"has {len(broker_ids)} queues for {topic!r}, {must}")
    queue_ids: list[tuple[int, int]] = []
    last = -1
    for topic_id, broker_id in paced(zip(topic_ids, broker_ids, strict=True)):
        if not 0 <= topic_id < total:
            highest = f"{total - 1}, total_queue_nums - 1"
            raise bad("topic_queue_ids", f"has {topic_id} for {topic!r}, must be 0 to {highest}")
        if topic_id <= last:
            raise bad("topic_queue_ids", f"has {topic_id} after {last} for {topic!r}, must ascend")
        if not 0 <= broker_id < MAX_QUEUE_NUMS:
            raise bad("broker_queue_ids", f"has {broker_id} for {topic!r}, must be 0 to {MAX_QUEUE_NUMS - 1}")
        queue_ids.append((topic_id, broker_id))
        last = topic_id
    return StaticMapping(message.scope, total, message.epoch, message.dirty, tuple(queue_ids))


# Requests of RegistrationService to records: every rule on input, with an error that names field and limit.

_BROKER_ID = NOT_NEGATIVE._replace(missing="is missing; 0 is the master, a slave has a higher id")
_VERSION_PART = NOT_NEGATIVE._replace(missing="is missing; a DataVersion needs timestamp_millis and counter")
_HEARTBEAT_TIMEOUT = between(limits.MIN_HEARTBEAT_TIMEOUT_MILLIS, limits.MAX_HEARTBEAT_TIMEOUT_MILLIS)
_QUEUE_NUMBERS = (("read_queue_nums", MAX_QUEUE_NUMS), ("write_queue_nums", MAX_QUEUE_NUMS), ("perm", MAX_PERM))
"""Numbers of queues, and the highest value of each."""
_ONLY_ANSWERS = "is set; only answers have it"
_LABELS = Rule(label_problem)
_HOLDER = Rule(at_most(limits.MAX_HOLDER_LENGTH, "characters"))
_CHANNEL = ANYTHING._replace(missing="is missing; a handover is of a channel")

Identity = tuple[BrokerKey, int, str]
"""Which broker a request is about: its group, its id and its address."""


def broker_identity(message: route_data_pb2.BrokerIdentity) -> Identity:
    """Checks a BrokerIdentity. Raises INVALID_FIELD."""
    check(*_identity_rows(message))
    return BrokerKey(message.cluster_name, message.broker_name), message.broker_id, message.broker_addr


def _identity_rows(message: route_data_pb2.BrokerIdentity) -> tuple[Row, ...]:
    return (
        ("broker.cluster_name", message.cluster_name, NAME),
        ("broker.broker_name", message.broker_name, NAME),
        ("broker.broker_id", given(message, "broker_id"), _BROKER_ID),
        ("broker.broker_addr", message.broker_addr, ADDRESS),
    )


def data_version(field: str, message: route_data_pb2.DataVersion) -> DataVersion:
    """Checks a DataVersion. Raises INVALID_FIELD if timestamp or counter is missing or negative."""
    check(*_version_rows(field, message))
    return _version_of(message)


def _version_rows(field: str, message: route_data_pb2.DataVersion) -> tuple[Row, ...]:
    if message.timestamp_millis > 0 and message.counter > 0:  # nearly always
        return ()
    parts = ("timestamp_millis", "counter")
    return tuple((f"{field}.{part}", given(message, part), _VERSION_PART) for part in parts)


def _version_of(message: route_data_pb2.DataVersion) -> DataVersion:
    return DataVersion(message.timestamp_millis, message.counter, message.state_version)


def read_registration(request: pb.RegisterBrokerRequest) -> Registration:
    """Checks all of a registration but its topics, which are not in what it returns.

    Raises:
        INVALID_FIELD: A field is missing or breaks its rule.
        LIMIT_EXCEEDED: There are too many topics, filter servers or labels.
    """
    check_topic_count(len(request.topic_configs))  # before anything waits
    ha_server_addr, zone_name = given(request, "ha_server_addr"), given(request, "zone_name")
    base_version, millis = given(request, "base_version"), given(request, "heartbeat_timeout_millis")
    servers = tuple(request.filter_servers.filter_servers) if request.HasField("filter_servers") else None
    if servers and len(servers) > limits.MAX_FILTER_SERVERS:
        raise limit_exceeded("filter servers", len(servers), limits.MAX_FILTER_SERVERS)
    labels = dict(request.labels.labels) if request.HasField("labels") else None
    if labels and len(labels) > MAX_LABELS:
        raise limit_exceeded("labels of a broker", len(labels), MAX_LABELS)
    broker = request.broker
    check(
        *_identity_rows(broker),
        ("ha_server_addr", ha_server_addr, ADDRESS),
        ("zone_name", zone_name, NAME),
        *_version_rows("data_version", request.data_version),
        *((f"filter_servers.filter_servers[{index}]", addr, ADDRESS) for index, addr in enumerate(servers or ())),
        *(() if base_version is None else _version_rows("base_version", base_version)),
        ("heartbeat_timeout_millis", millis, _HEARTBEAT_TIMEOUT),
        ("labels.labels", labels, _LABELS),
    )
    return Registration(
        broker=BrokerKey(broker.cluster_name, broker.broker_name),
        broker_id=broker.broker_id,
        broker_addr=broker.broker_addr,
        data_version=_version_of(request.data_version),
        topic_configs=None,
        ha_server_addr=ha_server_addr,
        filter_servers=servers,
        channel_id=given(request, "channel_id"),
        base_version=None if base_version is None else _version_of(base_version),
        zone_name=zone_name,
        enable_acting_master=given(request, "enable_acting_master"),
        labels=None if labels is None else tuple(sorted(labels.items())),
        timeout_seconds=None if millis is None else millis / 1000,
    )


def read_topics(
    messages: Collection[route_data_pb2.TopicConfig], known_topics: Container[str]
) -> dict[str, ReportedQueues]:
    """Checks topic configurations and returns them.

    Args:
        known_topics: Names that have been checked before: the names in the topic table.

    Raises:
        INVALID_FIELD: One breaks a rule, or a topic is there twice.
        LIMIT_EXCEEDED: There are too many, or queues in their mappings.
    """
    read: dict[str, ReportedQueues] = {}
    mapped_queues = 0
    check_topic_count(len(messages))
    shared: dict[QueueNumbers, QueueNumbers] = {}  # checked before; a tuple for each topic would take a hundred bytes
    problems = FieldProblems()
    for index, message in paced(enumerate(messages)):
        topic = message.topic
        try:  # a table of rows for each of 200,000 topics would take a third of the time
            if topic not in known_topics and (problem := TOPIC.problem(topic)) is not None:
                raise invalid_field(f"topic_configs[{index}].topic", problem)
            if topic in read:
                raise invalid_field(f"topic_configs[{index}].topic", f"{topic!r} is there twice")
            numbers = message.read_queue_nums, message.write_queue_nums, message.perm, message.topic_sys_flag
            checked = shared.get(numbers)
            if checked is None:
                check_all(_number_rows(f"topic_configs[{index}]", f"the topic {topic!r}", message))
                checked = numbers
                if 0 not in numbers[:3]:  # zero may mean absent, which is for each message to be looked at
                    shared[numbers] = numbers
            if message.HasField("mapping"):
                mapped_queues += len(message.mapping.topic_queue_ids)
                if mapped_queues > limits.MAX_MAPPED_QUEUES:
                    raise limit_exceeded(
                        "queues in mappings of one registration", mapped_queues, limits.MAX_MAPPED_QUEUES
                    )
                mapping = static_mapping(f"topic_configs[{index}].mapping", topic, message.mapping)
                read[topic] = (*checked, mapping)
                yield_point()
            else:
                read[topic] = checked
        except Refused as error:
            problems.add(error)
    problems.raise_any()
    return read


def check_body_crc32(request: pb.RegisterBrokerRequest) -> None:
    """Checks the topic configurations against body_crc32; 0 or absent checks nothing. Raises CRC32_NOT_MATCH."""
    if not request.body_crc32:
        return
    actual = 0
    for config in paced(request.topic_configs):
        numbers = f"{config.read_queue_nums} {config.write_queue_nums} {config.perm} {config.topic_sys_flag}"
        actual = zlib.crc32(f"{config.topic} {numbers}\n".encode(), actual)
    if actual != request.body_crc32:
        raise crc32_not_match(request.body_crc32, actual)


def topic_queues(request: pb.RegisterTopicRequest) -> dict[BrokerKey, QueueNumbers]:
    """Checks the topic and the queues of a RegisterTopicRequest, by the rules of a registration.

    Raises:
        INVALID_FIELD: A part breaks its rule, there are no queues, or a group is there twice.
        LIMIT_EXCEEDED: There are too many groups.
    """
    count = len(request.queue_datas)
    if count > limits.MAX_QUEUE_DATAS_PER_TOPIC:
        raise limit_exceeded("groups of one topic", count, limits.MAX_QUEUE_DATAS_PER_TOPIC)
    nothing = None if count else "is empty; name the queues of at least one broker group"
    rows: list[Row] = [("topic", request.topic, TOPIC), ("queue_datas", nothing, PROBLEM)]
    queues: dict[BrokerKey, QueueNumbers] = {}
    for index, message in enumerate(request.queue_datas):
        broker, where = BrokerKey(message.cluster_name, message.broker_name), f"queue_datas[{index}]"
        name = f"{broker.broker_name!r} of cluster {broker.cluster_name!r}"
        rows += (
            (f"{where}.cluster_name", broker.cluster_name, NAME),
            (f"{where}.broker_name", broker.broker_name, NAME),
            *_number_rows(where, f"the group {shown_name(broker.broker_name)}", message),
            *(
                (f"{where}.{part}", _ONLY_ANSWERS, PROBLEM)
                for part in ("reported_perm", "mapping")
                if message.HasField(part)
            ),
            (f"{where}.broker_name", f"{name} is there twice" if broker in queues else None, PROBLEM),
        )
        queues[broker] = message.read_queue_nums, message.write_queue_nums, message.perm, message.topic_sys_flag
    check_all(rows)
    return queues


def unregister_reason(reason: route_data_pb2.RemovalReason) -> RemovalReason:
    """The reason that a caller may give for an unregistration. Raises INVALID_FIELD."""
    if reason == route_data_pb2.REMOVAL_REASON_BROKER_DOWN:
        return RemovalReason.BROKER_DOWN
    if reason not in (route_data_pb2.REMOVAL_REASON_UNSPECIFIED, route_data_pb2.REMOVAL_REASON_UNREGISTERED):
        raise invalid_field("reason", f"is {reason}, only UNREGISTERED and BROKER_DOWN can be given")
    return RemovalReason.UNREGISTERED


def _number_rows(
    where: str, whose: str, message: route_data_pb2.TopicConfig | route_data_pb2.QueueData
) -> Iterator[Row]:
    for part, highest in _QUEUE_NUMBERS:
        value = given(message, part)
        if value is None:
            yield f"{where}.{part}", f"is missing for {whose}", PROBLEM
        elif not 0 <= value <= highest:
            yield f"{where}.{part}", f"is {value} for {whose}, 0 to {highest}", PROBLEM
    yield f"{where}.topic_sys_flag", message.topic_sys_flag, NOT_NEGATIVE


def _cost_of(topics: Collection[route_data_pb2.TopicConfig]) -> int:
    """As how many topics they count. Mappings count only where the topics alone would be read at once."""
    if len(topics) > INLINE_TOPICS:
        return len(topics)
    mapped = sum(len(topic.mapping.topic_queue_ids) for topic in topics if topic.HasField("mapping"))
    return len(topics) + mapped // QUEUES_LIKE_A_TOPIC


# RegistrationService: what brokers and their agents call.


@dataclass
class RegistrationServicer:
    """Checks requests, has the tables changed, answers."""

    inline_calls: ClassVar = ("QueryDataVersion", "BrokerHeartbeat")
    """Calls that never wait."""
    state: RouteState
    writer: TableWriter
    channels: ChannelStreams
    idle_timeout_millis: int
    tally: RegistrationCounter = field(default_factory=RegistrationCounter)
    registered_topics: Shares = field(default_factory=lambda: FairShares().registered_topics)

    def __post_init__(self) -> None:
        self._calls = BrokerCalls(self.state, self.writer, self.tally)

    async def RegisterBroker(self, request: pb.RegisterBrokerRequest, context: Context) -> pb.RegisterBrokerResponse:
        """REGISTER_BROKER, 103. Two of one broker at once have no order: an agent waits for the answer to the first."""
        topics, broker, sharer = request.topic_configs, request.broker, sharer_of(context)
        # From before the topics are read until the answer. Raises OVERLOADED if there are too many.
        room = self.registered_topics.holding(sharer, len(topics)) if topics else nullcontext()
        try:
            with self.tally.counting(kind_of(request)) as outcome, room:
                # What breaks a rule is refused before it waits for the tables. Topics that are held stay unread.
                registration = read_registration(request)
                self._calls.check_room(registration.live_key)
                known = self._calls.known_topics(registration.broker)
                unread = UnreadTopics(partial(_cost_of, topics), partial(read_topics, topics, known))
                if not request.body_crc32 or len(topics) <= INLINE_TOPICS:
                    check_body_crc32(request)
                else:
                    is_large = len(topics) > LARGE_TOPICS
                    await self.writer.read(partial(check_body_crc32, request), sharer.name, is_large=is_large)
                result = await self._calls.register(registration, unread, caller_of(context), sharer.name)
                outcome.result = "changed" if result.changed else "unchanged"
        except Refused as error:
            self._calls.log.refused(broker.cluster_name, broker.broker_name, broker.broker_addr, context.peer(), error)
            raise
        return pb.RegisterBrokerResponse(
            header=self.state.header(),
            ha_server_addr=result.ha_server_addr,
            master_addr=result.master_addr,
            generation=result.generation,
            changed=result.changed,
            order_topic_config=self._calls.order_topic_config(),
        )

    async def UnregisterBroker(
        self, request: pb.UnregisterBrokerRequest, context: Context
    ) -> pb.UnregisterBrokerResponse:
        """UNREGISTER_BROKER, 104."""
        broker, _, address = broker_identity(request.broker)
        reason, generation = unregister_reason(request.reason), given(request, "generation")
        caller, owner = caller_of(context), sharer_of(context).name
        removed = await self._calls.unregister(broker, address, caller, owner, reason=reason, generation=generation)
        return pb.UnregisterBrokerResponse(header=self.state.header(), removed=removed)

    async def QueryDataVersion(self, request: pb.QueryDataVersionRequest, context: Context) -> bytes:
        """QUERY_DATA_VERSION, 322."""
        with self.tally.counting("query") as outcome:
            identity = broker_identity(request.broker)
            version = data_version("data_version", request.data_version)
            changed, held = self.state.query_data_version(*identity, version)
            outcome.result = "changed" if changed else "unchanged"
        held_version = None if held is None else route_data_pb2.DataVersion(**asdict(held))
        after_header = pb.QueryDataVersionResponse(changed=changed, data_version=held_version).SerializeToString()
        if not changed:  # else it registers now, and asks with another version
            self._may_repeat(context, identity, "query", after_header)
        return self.state.header_fragment() + after_header

    async def BrokerHeartbeat(self, request: pb.BrokerHeartbeatRequest, context: Context) -> bytes:
        """BROKER_HEARTBEAT, 904."""
        with self.tally.counting("heartbeat") as outcome:
            identity = broker_identity(request.broker)
            self.state.broker_heartbeat(*identity)
            outcome.result = "unchanged"
        self._may_repeat(context, identity, "heartbeat", b"")
        return self.state.header_fragment()  # all of a BrokerHeartbeatResponse

    async def RegisterTopic(self, request: pb.RegisterTopicRequest, context: Context) -> pb.RegisterTopicResponse:
        """REGISTER_TOPIC_IN_NAMESRV, 217."""
        queues, owner = topic_queues(request), sharer_of(context).name
        changed = await self._calls.register_topic(request.topic, queues, caller_of(context), owner)
        return pb.RegisterTopicResponse(header=self.state.header(), changed=changed)

    async def OpenChannel(
        self, request: pb.OpenChannelRequest, context: Context
    ) -> AsyncIterator[pb.OpenChannelResponse]:
        """What RocketMQ's TCP connection and BrokerHousekeepingService were."""
        check(("holder", request.holder, _HOLDER))
        call = engine_call(context)
        opening = self.channels.open(request.holder, sharer_of(context), lambda: call.doubt if call else None)
        del request  # a channel lasts, and does not need its request
        async with opening as (channel_id, events):
            need(lambda principal: principal.check_brokers(NamedBrokers(self.state).of_channel(channel_id)))
            opened = pb.ChannelOpened(channel_id=channel_id, idle_timeout_millis=self.idle_timeout_millis)
            yield pb.OpenChannelResponse(opened=opened)
            while True:
                event = await events.get()
                yield event
                if event.HasField("closing"):
                    return

    async def HandOverChannel(
        self, request: pb.HandOverChannelRequest, _context: Context
    ) -> pb.HandOverChannelResponse:
        """The end of a channel is announced; RocketMQ has nothing like it."""
        # Not CHANNEL_GONE: the agent must not open another one.
        check(("channel_id", request.channel_id or None, _CHANNEL))
        brokers = self.channels.hand_over(request.channel_id)
        return pb.HandOverChannelResponse(
            header=self.state.header(),
            channel_grace_millis=round(self.state.behaviour.channel_grace_seconds * 1000),
            broker_count=brokers,
        )

    def _may_repeat(self, context: Context, identity: Identity, kind: Kind, after_header: bytes) -> None:
        """A broker was seen. While its row is the same, so is the answer, but for the header."""
        call, live, state = engine_call(context), self.state.live_broker(*identity), self.state
        if call is not None and live is not None:
            call.may_repeat(self._calls.again(live, kind, lambda: state.header_fragment() + after_header))
