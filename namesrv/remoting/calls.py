"""RocketMQ's request codes: which call answers each one, and with which permission."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.app.access import FairShares, NamedBrokers
from namesrv.app.administration import Administration, Operation
from namesrv.app.broker_calls import BrokerCalls
from namesrv.app.channels import ChannelStreams
from namesrv.app.event_log import Kind, RegistrationCounter, log_write_permission_wiped
from namesrv.app.field_rules import NAME, TOPIC, check
from namesrv.app.worker import FairLock, Worker
from namesrv.app.writer import LARGE_BYTES, TableWriter, run_cooperatively
from namesrv.core.changes import Cause
from namesrv.core.errors import Reason, invalid_field, limit_exceeded, registry_warming, suppress_refusals
from namesrv.core.lists import UNIT, UNIT_SUB, NamesAfter, TopicLists
from namesrv.core.model import (
    BrokerKey,
    DataVersion,
    HoldKey,
    LiveKey,
    QueueNumbers,
    Registration,
    TopicTableFingerprint,
)
from namesrv.core.pace import yield_point
from namesrv.core.registrations import UnreadTopics, master_of, needs_topics
from namesrv.core.state import RouteState, WarmUp
from namesrv.engines.api import CLUSTERS_DEPENDENCY, group_dependency, route_dependencies
from namesrv.error_codes import ResponseCode
from namesrv.remoting.bodies import RegistrationBody, data_version_of, is_compressed, queue_numbers, read_registration
from namesrv.remoting.caller import Brokers, Caller, Gate, Grade
from namesrv.remoting.json_reader import read_json
from namesrv.remoting.route_json import RouteJson
from namesrv.remoting.wire import INT_BITS, LONG_BITS, Request, answer, is_address, to_json
from namesrv.remoting.wire import RequestCode as Code
from namesrv_common.server.permits import NamedBroker
from namesrv_common.server.shares import Shares

MAX_REMARK_CHARACTERS = 1_000
"""Longest text about a refused request: it may repeat a part of it."""

MAX_DATA_VERSION_BYTES = 1_024
"""Largest body of a QUERY_DATA_VERSION, which is read in one step. Honest ones have a hundred bytes."""

# Lists of topics and brokers. RocketMQ has no pages: each is a whole answer, made in steps.

NAMES_AT_ONCE = 2_500
"""Names that are encoded in one call: half a millisecond."""

_ALL = 2**31
"""More topics than there can be: the whole list is one page."""

TOPIC_LISTS: Mapping[Code, Callable[[TopicLists, Request], NamesAfter]] = {
    Code.GET_ALL_TOPIC_LIST: lambda lists, _: lists.all(),
    Code.GET_TOPICS_BY_CLUSTER: lambda lists, request: lists.of_cluster(request.text("cluster")),
    Code.GET_SYSTEM_TOPIC_LIST: lambda lists, _: lists.system(),
    Code.GET_UNIT_TOPIC_LIST: lambda lists, _: lists.with_flags(UNIT, 0),
    Code.GET_UNIT_SUB_TOPIC_LIST: lambda lists, _: lists.with_flags(UNIT_SUB, 0),
    Code.GET_UNIT_SUB_UNUNIT_TOPIC_LIST: lambda lists, _: lists.with_flags(UNIT_SUB, UNIT),
}
"""The list of topics that each code asks for."""


def _topic_list(names: NamesAfter, broker_addr: str | None) -> bytes:
    topics = names("", _ALL)
    parts: list[bytes] = []
    for start in range(0, len(topics), NAMES_AT_ONCE):
        parts.append(to_json(topics[start : start + NAMES_AT_ONCE])[1:-1])
        yield_point()
    addr = b"" if broker_addr is None else b'"brokerAddr":%b,' % to_json(broker_addr)
    return b'{%b"topicList":[%b]}' % (addr, b",".join(parts))


# The lookup of a route, which most requests are, and the groups behind routes.

RouteElsewhere = Callable[[str, str | None], Awaitable[route_data_pb2.TopicRouteData | None]]
"""Finds the route of a topic, for a zone, in the other environment of cluster-test mode."""


@dataclass
class LookupCalls:
    """Routes and groups are answered at once. A list is made from the tables of each step."""

    state: RouteState
    reader: Worker
    warm_up: WarmUp
    elsewhere: RouteElsewhere | None = None
    """Finds topics that are unknown here, in cluster-test mode."""

    def __post_init__(self) -> None:
        self._routes = RouteJson(self.state)
        # Held while a list is made. Only written bytes count as unsent, so the lists of thousands of connections must
        # not be made together.
        self._one_at_a_time = FairLock()

    def route(self, request: Request, _caller: Caller) -> bytes | None:
        """Returns None if another environment has to be asked."""
        topic = request.fields.get("topic", "")
        body = self._routes.route(topic, _zone_name(request), bare_keys=request.bare_keys)
        if body is not None:
            request.call.may_keep(route_dependencies(self.state, topic))
            return answer(request, ResponseCode.SUCCESS, body)
        if not self.warm_up.is_warm():
            raise registry_warming(f"the topic {topic[:127]!r}")
        if self.elsewhere is not None:
            return None
        request.call.may_keep([topic])
        return _no_such_topic(request, topic)

    async def route_elsewhere(self, request: Request, _caller: Caller) -> bytes:
        """The same for a topic that is unknown here, in cluster-test mode."""
        assert self.elsewhere is not None, "it is asked where there is one"
        topic = request.text("topic")
        check(("topic", topic, TOPIC))
        route = await self.elsewhere(topic, _zone_name(request))
        if route is None:
            return _no_such_topic(request, topic)
        body = self._routes.of_message(topic, route, bare_keys=request.bare_keys)
        return answer(request, ResponseCode.SUCCESS, body)

    def member_group(self, request: Request, _caller: Caller) -> bytes:
        broker = request.broker
        body = self._routes.member_group(broker, bare_keys=request.bare_keys)
        request.call.may_keep([group_dependency(broker)])
        return answer(request, ResponseCode.SUCCESS, body)

    async def cluster_info(self, request: Request, caller: Caller) -> bytes:
        async with self._slot(caller):
            request.call.may_keep([CLUSTERS_DEPENDENCY])  # unless a change comes before the last step
            body = await run_cooperatively(self._routes.cluster_info(bare_keys=request.bare_keys))
        return answer(request, ResponseCode.SUCCESS, body)

    async def topics(self, request: Request, caller: Caller) -> bytes:
        async with self._slot(caller):
            names = TOPIC_LISTS[Code(request.code)](self.state.topic_lists, request)
            broker_addr = self.state.topic_lists.broker_addr() if request.code == Code.GET_SYSTEM_TOPIC_LIST else None
            body = await self.reader.run(partial(_topic_list, names, broker_addr))
        return answer(request, ResponseCode.SUCCESS, body)

    @contextlib.asynccontextmanager
    async def _slot(self, caller: Caller) -> AsyncIterator[None]:
        """Makes one list at a time, round robin by address. After each, no list is made for as long as it took."""
        await self._one_at_a_time.acquire(caller.owner)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            loop.call_later(loop.time() - began, self._one_at_a_time.release)


def _no_such_topic(request: Request, topic: str) -> bytes:
    remark = (
        f"No topic route info in name server for the topic: {topic[:MAX_REMARK_CHARACTERS]}"
        "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )
    return answer(request, ResponseCode.TOPIC_NOT_EXIST, remark=remark)


def _zone_name(request: Request) -> str | None:
    """The zone that a client asks from (RocketMQ: ZoneRouteRPCHook)."""
    zone_name = request.fields.get("__ZONE_NAME")
    return zone_name if zone_name and request.switch("__ZONE_MODE") else None


# What operators' tools call: the same rules, intents, files and journal as AdminService.

_MAX_PROPERTIES_BYTES = 64 * 1024
"""Largest body of such a request, which is read in one step."""


@dataclass
class OperatorCalls:
    """As in RocketMQ, a removal of a missing thing succeeds, and no change needs a confirmation."""

    state: RouteState
    administration: Administration

    async def get_kv_config(self, request: Request, _caller: Caller) -> bytes:
        value = self.administration.kv_value(*_kv_key(request))
        return answer(request, ResponseCode.SUCCESS, fields={"value": value})

    async def list_kv_configs(self, request: Request, _caller: Caller) -> bytes:
        entries = self.administration.kv_entries(request.text("namespace"))
        return answer(request, ResponseCode.SUCCESS, to_json({"table": dict(sorted(entries.items()))}))

    async def get_config(self, request: Request, _caller: Caller) -> bytes:
        """The settings as Java's properties."""
        lines = (f"{key}={text}\n" for key, text in self.administration.settings().items())
        return answer(request, ResponseCode.SUCCESS, "".join(lines).encode())

    async def put_kv_config(self, request: Request, caller: Caller) -> bytes:
        value = request.text("value", may_be_empty=True)
        await self.administration.put_kv(*_kv_key(request), value, _operation("PutKvConfig", caller))
        return answer(request, ResponseCode.SUCCESS)

    async def delete_kv_config(self, request: Request, caller: Caller) -> bytes:
        await self.administration.delete_kv(*_kv_key(request), _operation("DeleteKvConfig", caller))
        return answer(request, ResponseCode.SUCCESS)

    async def wipe_write_perm(self, request: Request, caller: Caller) -> bytes:
        """Wipes the groups of that name in every cluster.

        Answer and log say how it ends: with Apache's name server, which an old mqadmin is made for, it ends by itself.
        """
        topics, remark, operation = 0, None, _operation("WipeWritePermOfBroker", caller)
        for cluster_name, name in self.state.groups_named(request.text("brokerName"), None):
            topics += (await self.administration.wipe_write_perm(name, cluster_name, operation)).topic_count
            remedy = f"mqadmin addWritePerm -b {name} (RocketMQ 4.9 or later), or nsctl undrain {name}"
            remark = f"broker {name} stays without write permission, also after it restarts, until {remedy}"
            log_write_permission_wiped(name, cluster_name, remedy)
        remark = remark and remark[:MAX_REMARK_CHARACTERS]
        return answer(request, ResponseCode.SUCCESS, fields={"wipeTopicCount": str(topics)}, remark=remark)

    async def add_write_perm(self, request: Request, caller: Caller) -> bytes:
        topics, operation = 0, _operation("AddWritePermOfBroker", caller)
        for cluster_name, name in self.state.groups_named(request.text("brokerName"), None):
            topics += (await self.administration.add_write_perm(name, cluster_name, operation)).topic_count
        return answer(request, ResponseCode.SUCCESS, fields={"addTopicCount": str(topics)})

    async def delete_topic(self, request: Request, caller: Caller) -> bytes:
        cluster_name = request.text("clusterName") if request.fields.get("clusterName") else None
        key = HoldKey(request.text("topic"), cluster_name)
        with suppress_refusals(Reason.TOPIC_NOT_FOUND):
            await self.administration.delete_topic(key, _operation("DeleteTopic", caller))
        return answer(request, ResponseCode.SUCCESS)

    async def update_config(self, request: Request, caller: Caller) -> bytes:
        """Changes keys that gRPC changes, too, and no other."""
        await self.administration.change_settings(_properties(request.body), _operation("UpdateNamesrvConfig", caller))
        return answer(request, ResponseCode.SUCCESS)


def _kv_key(request: Request) -> tuple[str, str]:
    return request.text("namespace"), request.text("key")


def _operation(call: str, caller: Caller) -> Operation:
    return Operation(Cause(call, caller.journal_name), caller.owner)


def _properties(body: bytes) -> dict[str, str]:
    """Java's properties, ``key=value`` a line. Raises INVALID_FIELD."""
    if len(body) > _MAX_PROPERTIES_BYTES:
        raise invalid_field("body", f"has {len(body)} bytes, at most {_MAX_PROPERTIES_BYTES}")
    values: dict[str, str] = {}
    for line in _decoded(body).splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise invalid_field("body", f"has a line without '=': {stripped[:40]!r}")
        values[key.strip()] = value.strip()
    return values


# Calls of brokers: registrations, unregistrations, heartbeats.

TINY_BODY_BYTES = 8 * 1024
"""Bodies up to this size that are not compressed are read in one step: some fifty topics, a fifth of a millisecond."""


@dataclass
class RegistrationCalls:
    """Requests become records. The connection is the broker's channel from its first registration on."""

    state: RouteState
    writer: TableWriter
    channels: ChannelStreams
    tally: RegistrationCounter
    gate: Gate
    shares: FairShares

    def __post_init__(self) -> None:
        self._calls = BrokerCalls(self.state, self.writer, self.tally)
        self._named_brokers = NamedBrokers(self.state)

    async def register(self, request: Request, caller: Caller) -> bytes:
        topics = self.shares.registered_topics
        with self.tally.counting("full") as outcome:
            registration = await self._registration(request, caller)
            with topics.holding(caller.sharer, len(registration.topic_configs or ())):
                # The topics that are held may be lost before the registration is made.
                read = partial(self._read_body, request, registration.broker)
                unread = UnreadTopics(lambda: registration.topic_count, lambda: read().configs)
                result = await self._calls.register(registration, unread, caller.journal_name, caller.owner)
            outcome.result = "changed" if result.changed else "unchanged"
        master, order = (result.ha_server_addr, result.master_addr), self._order_topic_config()
        values = {name: value for name, value in zip(("haServerAddr", "masterAddr"), master, strict=True) if value}
        told = answer(request, ResponseCode.SUCCESS, order, values)
        if registration.topic_configs is None and not registration.mappings and not result.changed:
            self._may_repeat(request, registration, (master, order), told)
        return told

    def _may_repeat(self, request: Request, registration: Registration, said: object, told: bytes) -> None:
        """The registration brought nothing new. While that is so, the same bytes are a heartbeat."""
        state = self.state
        live = state.tables.broker_live_table.get(registration.live_key)
        group = state.tables.broker_addr_table.get(registration.broker)
        if live is None or group is None:
            return

        def is_same() -> bool:
            return (
                state.tables.broker_addr_table.get(live.broker) is group
                and state.is_confirmed(live)
                and not state.frozen
                and not needs_topics(state, registration)
                and (master_of(state, live), self._order_topic_config()) == said
            )

        request.may_repeat(self._calls.again(live, "full", lambda: told, is_same))

    async def unregister(self, request: Request, caller: Caller) -> bytes:
        """A success also for a broker that is not there."""
        broker, address = request.broker, request.broker_addr
        await self._calls.unregister(broker, address, caller.journal_name, caller.owner)
        return answer(request, ResponseCode.SUCCESS)

    def query_data_version(self, request: Request, _caller: Caller) -> bytes:
        """A question, and a heartbeat."""
        with self.tally.counting("query") as outcome:
            broker, address = request.broker, request.broker_addr
            if len(request.body) > MAX_DATA_VERSION_BYTES:
                raise limit_exceeded("bytes of a DataVersion", len(request.body), MAX_DATA_VERSION_BYTES)
            version = data_version_of(read_json(_decoded(request.body)))
            changed, held = query_by_address(self.state, broker, request.broker_id, address, version)
            outcome.result = "changed" if changed else "unchanged"
        body = b""
        if held is not None:
            values = {"counter": held.counter, "stateVersion": held.state_version, "timestamp": held.timestamp_millis}
            body = to_json(values)
        told = answer(request, ResponseCode.SUCCESS, body, {"changed": "true" if changed else "false"})
        if not changed:  # else it registers now, and asks with another version
            self._is_heartbeat(request, LiveKey(broker.cluster_name, address), "query", told)
        return told

    def heartbeat(self, request: Request, _caller: Caller) -> bytes:
        """By cluster and address, as it has no broker id."""
        with self.tally.counting("heartbeat") as outcome:
            cluster_name, address = request.text("clusterName"), request.broker_addr
            if heartbeat_by_address(self.state, LiveKey(cluster_name, address)):
                outcome.result = "unchanged"
        told = answer(request, ResponseCode.SUCCESS)
        self._is_heartbeat(request, LiveKey(cluster_name, address), "heartbeat", told)
        return told

    def _is_heartbeat(self, request: Request, key: LiveKey, kind: Kind, told: bytes) -> None:
        """A broker was seen. While its row is the same, so is the answer."""
        live = self.state.tables.broker_live_table.get(key)
        if live is not None and live.topic_by_topic and self.state.is_confirmed(live):
            request.may_repeat(self._calls.again(live, kind, lambda: told))

    async def register_topic(self, request: Request, caller: Caller) -> bytes:
        """Takes queues by broker name. Groups that are not there are passed over."""
        topic = request.text("topic")
        check(("topic", topic, TOPIC))
        is_large = len(request.body) > LARGE_BYTES
        body = await self.writer.read(lambda: read_json(_decoded(request.body)), caller.owner, is_large=is_large)
        queues = self._queues(body)
        self.gate.check(caller, Grade.REGISTRATIONS, partial(map, NamedBroker, queues))
        if queues:
            await self._calls.register_topic(topic, queues, caller.journal_name, caller.owner)
        return answer(request, ResponseCode.SUCCESS)

    def brokers_of(self, request: Request) -> Brokers:
        """The broker of a request, and the one that has its address."""
        return partial(self._named_brokers.at_address, *request.broker_names)

    async def _registration(self, request: Request, caller: Caller) -> Registration:
        broker, broker_id, broker_addr = request.broker, request.broker_id, request.broker_addr
        ha_server_addr = request.fields.get("haServerAddr") or None
        zone_name = request.fields.get("__ZONE_NAME") or None
        check(("__ZONE_NAME", zone_name, NAME))
        self._calls.check_room(LiveKey(broker.cluster_name, broker_addr))
        held = self.state.index.table_fingerprints.get(broker)
        read, size = partial(self._read_body, request, broker, held), len(request.body)
        if not (is_packed := is_compressed(request.body)) and size <= TINY_BODY_BYTES:
            body = read()
        else:
            is_large = is_packed or size > LARGE_BYTES
            body = await self.writer.read(read, caller.owner, is_large=is_large, is_next=False)
        if ha_server_addr is not None and not is_address(ha_server_addr):
            body.odd_addresses.insert(0, ha_server_addr)
            ha_server_addr = None
        acting, millis = request.switch("enableActingMaster"), request.number("heartbeatTimeoutMillis", LONG_BITS) or 0
        within = min(max(millis, limits.MIN_HEARTBEAT_TIMEOUT_MILLIS), limits.MAX_HEARTBEAT_TIMEOUT_MILLIS)
        registration = Registration(
            broker=broker,
            broker_id=broker_id,
            broker_addr=broker_addr,
            data_version=body.data_version,
            topic_configs=body.topic_configs,
            ha_server_addr=ha_server_addr,
            filter_servers=body.filter_servers,
            channel_id=caller.channel(self.channels, self.gate, self._named_brokers.of_channel),
            zone_name=zone_name,
            enable_acting_master=acting,
            timeout_seconds=within / 1000 if acting and millis > 0 else None,
            topic_by_topic=True,
            mappings=body.mappings,
            table_fingerprint=body.table_fingerprint,
        )
        if body.skipped:
            self.tally.skipped(body.skipped)
            self._calls.log.topics_skipped(registration, body.skipped, body.problems)
        if body.odd_addresses:
            self._calls.log.addresses_skipped(registration, body.odd_addresses)
        return registration

    def _read_body(
        self, request: Request, broker: BrokerKey, held: TopicTableFingerprint | None = None
    ) -> RegistrationBody:
        crc32 = request.number("bodyCrc32", INT_BITS)
        return read_registration(request.body, crc32, self._calls.known_topics(broker), held)

    def _queues(self, route: object) -> dict[BrokerKey, QueueNumbers]:
        """The queues of a TopicRouteData by group. A name in several clusters is the group that registered first."""
        rows = route.get("queueDatas") if isinstance(route, dict) else None
        if not isinstance(rows, list | None) or len(rows or ()) > limits.MAX_QUEUE_DATAS_PER_TOPIC:
            raise invalid_field("body.queueDatas", f"is no list of at most {limits.MAX_QUEUE_DATAS_PER_TOPIC}")
        wanted: dict[str, QueueNumbers] = {}
        for row in rows or ():
            if not isinstance(row, dict) or not isinstance(row.get("brokerName"), str):
                raise invalid_field("body.queueDatas.brokerName", "is missing")
            try:
                wanted[row["brokerName"]] = queue_numbers(row)
            except ValueError as error:
                raise invalid_field("body.queueDatas", str(error)) from None
        groups = self.state.tables.broker_addr_table
        return {key: wanted.pop(key.broker_name) for key in groups if key.broker_name in wanted}

    def _order_topic_config(self) -> bytes:
        """The ordered-topic configuration as a KVTable; empty if there is none."""
        entries = self._calls.order_topic_config()
        return to_json({"table": dict(entries)}) if entries else b""


def query_by_address(
    state: RouteState, broker: BrokerKey, broker_id: int, broker_addr: str, data_version: DataVersion
) -> tuple[bool, DataVersion | None]:
    """Answers a broker of RocketMQ 5 whether its topics are known. Its address alone identifies it.

    Whatever the answer, a broker with merging registrations lives: with an acting master it sends this query each
    second instead of a heartbeat, and has 10 s. An unconfirmed broker stays unconfirmed, and the query never
    shortens its time. For a broker that an agent registered, only the agent's ``query_data_version`` counts.

    Returns:
        Whether a registration is needed, and the version held. One is needed also while all that the broker has said is
        one topic, which may be an increment of a table that nobody here knows.
    """
    live = state.tables.broker_live_table.get(LiveKey(broker.cluster_name, broker_addr))
    if live is None or not live.topic_by_topic:
        return state.query_data_version(broker, broker_id, broker_addr, data_version)
    state.renew(live)
    is_same = (live.broker, live.broker_id, live.data_version) == (broker, broker_id, data_version)
    return not is_same or live.unconfirmed or live.key in state.possibly_partial, live.data_version


def heartbeat_by_address(state: RouteState, key: LiveKey) -> bool:
    """Renews liveness of a broker with merging registrations (RocketMQ 5: BROKER_HEARTBEAT, without an id).

    Returns whether there is such a broker at this address. RocketMQ ignores heartbeats of others.
    """
    live = state.tables.broker_live_table.get(key)
    if live is None or not live.topic_by_topic:
        return False
    state.renew(live)
    return True


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise invalid_field("body", "is no UTF-8") from None


# The table of requests: what each needs, and what answers it.


BrokersOf = Callable[[Request], Brokers | None]
"""Finds the brokers that a request names: its caller must be permitted to register them."""


class AtOnce(NamedTuple):
    """A call that is answered at once."""

    grade: Grade
    call: Callable[[Request, Caller], bytes | None]
    """Returns None if the call has to wait."""
    brokers: BrokersOf = lambda _: None


class InTurn(NamedTuple):
    """A call that is made after the earlier ones of its connection that are not answered at once."""

    grade: Grade
    call: Callable[[Request, Caller], Awaitable[bytes]]
    shares: Shares
    """One of them is taken until it is answered."""
    brokers: BrokersOf = lambda _: None
    is_question: bool = True
    """Whether it only reads. Sent one-way, it is dropped."""
    reads_body: bool = False


class Calls(NamedTuple):
    """What answers requests, by their code."""

    gate: Gate
    """Decides who may make them: when they come, and when they are made."""
    at_once: Mapping[int, AtOnce]
    in_turn: Mapping[int, InTurn]


def calls_of(
    lookups: LookupCalls, registrations: RegistrationCalls, operators: OperatorCalls, gate: Gate, *, shares: FairShares
) -> Calls:
    """The calls of a name server."""
    brokers_of = registrations.brokers_of
    at_once: dict[int, AtOnce] = {
        Code.GET_ROUTEINFO_BY_TOPIC: AtOnce(Grade.LOOKUPS, lookups.route),
        Code.GET_BROKER_MEMBER_GROUP: AtOnce(Grade.LOOKUPS, lookups.member_group),
        Code.QUERY_DATA_VERSION: AtOnce(Grade.REGISTRATIONS, registrations.query_data_version, brokers_of),
        Code.BROKER_HEARTBEAT: AtOnce(Grade.REGISTRATIONS, registrations.heartbeat, brokers_of),
    }
    lookup = partial(InTurn, Grade.LOOKUPS, shares=shares.lookups)
    registration = partial(InTurn, Grade.REGISTRATIONS, shares=shares.registrations, is_question=False)
    operation = partial(InTurn, Grade.OPERATORS, shares=shares.admin_calls, is_question=False)
    in_turn: dict[int, InTurn] = {
        Code.GET_ROUTEINFO_BY_TOPIC: lookup(lookups.route_elsewhere),
        Code.GET_BROKER_CLUSTER_INFO: lookup(lookups.cluster_info),
        **dict.fromkeys(TOPIC_LISTS, lookup(lookups.topics)),
        Code.GET_KV_CONFIG: lookup(operators.get_kv_config),
        Code.GET_KVLIST_BY_NAMESPACE: lookup(operators.list_kv_configs),
        Code.REGISTER_BROKER: registration(registrations.register, brokers=brokers_of, reads_body=True),
        Code.UNREGISTER_BROKER: registration(registrations.unregister, brokers=brokers_of),
        Code.REGISTER_TOPIC: registration(registrations.register_topic, reads_body=True),
        Code.GET_NAMESRV_CONFIG: operation(operators.get_config, is_question=True),
        Code.PUT_KV_CONFIG: operation(operators.put_kv_config),
        Code.DELETE_KV_CONFIG: operation(operators.delete_kv_config),
        Code.WIPE_WRITE_PERM_OF_BROKER: operation(operators.wipe_write_perm),
        Code.ADD_WRITE_PERM_OF_BROKER: operation(operators.add_write_perm),
        Code.DELETE_TOPIC_IN_NAMESRV: operation(operators.delete_topic),
        Code.UPDATE_NAMESRV_CONFIG: operation(operators.update_config, reads_body=True)._replace(grade=Grade.SETTINGS),
    }
    return Calls(gate, at_once, in_turn)
