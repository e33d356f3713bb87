"""RocketMQ's request codes: which call answers each one, and with which permission."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from namesrv_api.v1 import registration_service_pb2 as registration_pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.app.access import caller_of, principal_name, sharer_of
from namesrv.app.administration import MAX_CONFIG_VALUES, Administration, Operation
from namesrv.app.channels import ChannelStreams
from namesrv.app.counters import Kind, RegistrationCounter
from namesrv.app.event_log import (
    RegistrationLog,
    log_removed,
    log_topic_registered,
    log_write_permission_wiped,
)
from namesrv.app.fair_queue import FairLock
from namesrv.app.field_rules import NAME, TOPIC, check
from namesrv.app.quotas import FairShares
from namesrv.app.worker import Worker
from namesrv.app.writer import LARGE_BYTES, TableWriter, run_cooperatively
from namesrv.core.changes import Cause
from namesrv.core.errors import (
    Reason,
    invalid_field,
    limit_exceeded,
    registry_warming,
)
from namesrv.core.heartbeats import Heartbeats
from namesrv.core.model import (
    ORDER_TOPIC_CONFIG,
    BrokerKey,
    DataVersion,
    HoldKey,
    LiveKey,
    QueueNumbers,
    Registration,
    RemovalReason,
    TopicTableFingerprint,
)
from namesrv.core.pace import breathe
from namesrv.core.registrations import Registrations, UnreadTopics
from namesrv.core.removals import Removals
from namesrv.core.slices import Sliced
from namesrv.core.state import RouteState
from namesrv.core.topic_lists import UNIT, UNIT_SUB, NamesAfter
from namesrv.core.warm_up import WarmUp
from namesrv.engines.api import CLUSTERS_DEPENDENCY, group_dependency
from namesrv.error_codes import ResponseCode
from namesrv.remoting.answers import no_such_topic
from namesrv.remoting.bodies import (
    RegistrationBody,
    data_version_of,
    is_compressed,
    queue_numbers,
    read_registration,
)
from namesrv.remoting.caller import Caller, Gate, Grade
from namesrv.remoting.limits import MAX_DATA_VERSION_BYTES, MAX_REMARK_CHARACTERS
from namesrv.remoting.route_json import RouteJson
from namesrv.remoting.wire import fields
from namesrv.remoting.wire.codes import STANDARD_JSON_VERSION
from namesrv.remoting.wire.codes import RequestCode as Code
from namesrv.remoting.wire.headers import Request, answer
from namesrv.remoting.wire.json_reader import read_json
from namesrv_common.errors import suppress_refusals
from namesrv_common.server.rpc_handlers import NO_LIMIT
from namesrv_common.server.shares import Shares

# Lists of topics and brokers. RocketMQ has no pages: each is a whole answer, made in steps.

NAMES_AT_ONCE = 2_500
"""Names that are encoded in one call: half a millisecond."""

GROUP_SLICE = 100
"""Groups that are encoded before yielding: less than a millisecond."""

_ALL = 2**31
"""More topics than there can be: the whole list is one page."""


class ListCalls:
    """Lists, from the tables as they are while the list is made."""

    def __init__(self, state: RouteState, routes: RouteJson, reader: Worker) -> None:
        self._state = state
        self._lists = state.topic_lists
        self._routes = routes
        self._reader = reader
        self._one_at_a_time = FairLock()
        """Held while a list is made. Only written bytes count as unsent, so the lists of thousands of connections
        must not be made together."""

    async def cluster_info(self, request: Request, caller: Caller) -> bytes:
        """GET_BROKER_CLUSTER_INFO, 106."""
        async with self._slot(caller):
            request.call.may_keep([CLUSTERS_DEPENDENCY])  # unless a change comes before the last step
            parts = self._routes.cluster_info(bare_keys=fields.bare_keys(request))
            body = await run_cooperatively(_joined(parts))
        return answer(request, ResponseCode.SUCCESS, body)

    async def all_topics(self, request: Request, caller: Caller) -> bytes:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 206."""
        return await self._answered(request, caller, self._lists.all)

    async def topics_of_cluster(self, request: Request, caller: Caller) -> bytes:
        """GET_TOPICS_BY_CLUSTER, 224."""
        cluster_name = fields.text(request, "cluster")
        return await self._answered(request, caller, partial(self._lists.of_cluster, cluster_name))

    async def system_topics(self, request: Request, caller: Caller) -> bytes:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS, 304."""
        return await self._answered(request, caller, self._lists.system, self._lists.broker_addr())

    async def unit_topics(self, request: Request, caller: Caller) -> bytes:
        """GET_UNIT_TOPIC_LIST, 311."""
        return await self._answered(request, caller, partial(self._lists.with_flags, UNIT, 0))

    async def unit_sub_topics(self, request: Request, caller: Caller) -> bytes:
        """GET_HAS_UNIT_SUB_TOPIC_LIST, 312."""
        return await self._answered(request, caller, partial(self._lists.with_flags, UNIT_SUB, 0))

    async def unit_sub_ununit_topics(self, request: Request, caller: Caller) -> bytes:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, 313."""
        return await self._answered(request, caller, partial(self._lists.with_flags, UNIT_SUB, UNIT))

    async def _answered(
        self, request: Request, caller: Caller, taken: Callable[[], NamesAfter], broker_addr: str | None = None
    ) -> bytes:
        async with self._slot(caller):
            body = await self._reader.run(partial(_topic_list, taken(), broker_addr))
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


def _joined(parts: Iterable[bytes | None]) -> Sliced[bytes]:
    """Joins parts that are made from the present tables. None stands for a group that was looked at."""
    joined: list[bytes] = []
    groups = 0
    for part in parts:
        if part is not None:
            joined.append(part)
            continue
        groups += 1
        if groups % GROUP_SLICE == 0:
            yield
    return b"".join(joined)


def _topic_list(names: NamesAfter, broker_addr: str | None) -> bytes:
    topics = names("", _ALL)
    parts: list[str] = []
    for start in range(0, len(topics), NAMES_AT_ONCE):
        parts.append(json.dumps(topics[start : start + NAMES_AT_ONCE], separators=(",", ":"))[1:-1])
        breathe()
    addr = "" if broker_addr is None else f'"brokerAddr":{json.dumps(broker_addr)},'
    return f'{{{addr}"topicList":[{",".join(parts)}]}}'.encode()


# The lookup of a route, which most requests are, and the groups behind routes.

RouteElsewhere = Callable[[str, str | None], Awaitable[route_data_pb2.TopicRouteData | None]]
"""Finds the route of a topic, for a zone, in the other environment of cluster-test mode."""

_ZONE_MODE, _ZONE_NAME = "__ZONE_MODE", "__ZONE_NAME"


class LookupCalls:
    """Answered at once, from whole answers or pieces that are kept."""

    def __init__(self, routes: RouteJson, warm_up: WarmUp, elsewhere: RouteElsewhere | None = None) -> None:
        """Answers from the routes.

        Args:
            elsewhere: Finds topics that are unknown here, or None in other modes.
        """
        self._routes = routes
        self._warm_up = warm_up
        self._elsewhere = elsewhere

    def route(self, request: Request, _caller: Caller) -> bytes | None:
        """GET_ROUTEINFO_BY_TOPIC, 105; None if another environment has to be asked."""
        given = request.fields
        topic = given.get("topic", "")
        bare_keys = request.version < STANDARD_JSON_VERSION and fields.bare_keys(request)
        zone_name = _zone_name(request) if _ZONE_NAME in given else None
        body = self._routes.route(topic, zone_name, bare_keys=bare_keys)
        if body is not None:
            if (dependencies := self._routes.dependencies(topic)) is not None:
                request.call.may_keep(dependencies)
            return answer(request, ResponseCode.SUCCESS, body)
        if not self._warm_up.is_warm():
            raise registry_warming(f"the topic {topic[:127]!r}")
        if self._elsewhere is not None:
            return None
        request.call.may_keep([topic])
        return no_such_topic(request, topic)

    async def route_elsewhere(self, request: Request, _caller: Caller) -> bytes:
        """The same for a topic that is unknown here, in cluster-test mode."""
        assert self._elsewhere is not None, "it is asked where there is one"
        topic = fields.text(request, "topic")
        check(("topic", topic, TOPIC))
        route = await self._elsewhere(topic, _zone_name(request))
        if route is None:
            return no_such_topic(request, topic)
        body = self._routes.of_encoded(topic, route.SerializeToString(), bare_keys=fields.bare_keys(request))
        return answer(request, ResponseCode.SUCCESS, body)

    def member_group(self, request: Request, _caller: Caller) -> bytes:
        """GET_BROKER_MEMBER_GROUP, 901."""
        broker = fields.broker(request)
        body = self._routes.member_group(broker, bare_keys=fields.bare_keys(request))
        request.call.may_keep([group_dependency(broker)])
        return answer(request, ResponseCode.SUCCESS, body)


def _zone_name(request: Request) -> str | None:
    """The zone that a client asks from (RocketMQ: ZoneRouteRPCHook)."""
    zone_name = request.fields.get(_ZONE_NAME)
    return zone_name if zone_name and fields.switch(request, _ZONE_MODE) else None


# What operators' tools call: the same rules, intents, files and journal as AdminService.

_MAX_PROPERTIES_BYTES = 64 * 1024
"""Largest body of such a request, which is read in one step."""


class OperatorCalls:
    """As in RocketMQ, a removal of a missing thing succeeds, and no change needs a confirmation."""

    def __init__(self, state: RouteState, administration: Administration) -> None:
        self._state = state
        self._administration = administration

    async def get_kv_config(self, request: Request, _caller: Caller) -> bytes:
        """GET_KV_CONFIG, 101."""
        value = self._administration.kv_value(*_kv_key(request))
        return answer(request, ResponseCode.SUCCESS, fields={"value": value})

    async def list_kv_configs(self, request: Request, _caller: Caller) -> bytes:
        """GET_KVLIST_BY_NAMESPACE, 219: the whole namespace, without pages."""
        entries = self._administration.kv_entries(fields.text(request, "namespace"))
        return answer(request, ResponseCode.SUCCESS, _json({"table": dict(sorted(entries.items()))}))

    async def get_config(self, request: Request, _caller: Caller) -> bytes:
        """GET_NAMESRV_CONFIG, 319: as Java's properties."""
        lines = (f"{key}={text}\n" for key, text in self._administration.settings().items())
        return answer(request, ResponseCode.SUCCESS, "".join(lines).encode())

    async def put_kv_config(self, request: Request, caller: Caller) -> bytes:
        """PUT_KV_CONFIG, 100."""
        value = fields.text_or_empty(request, "value")
        await self._administration.put_kv(*_kv_key(request), value, _operation("PutKvConfig", caller))
        return answer(request, ResponseCode.SUCCESS)

    async def delete_kv_config(self, request: Request, caller: Caller) -> bytes:
        """DELETE_KV_CONFIG, 102."""
        await self._administration.delete_kv(*_kv_key(request), _operation("DeleteKvConfig", caller))
        return answer(request, ResponseCode.SUCCESS)

    async def wipe_write_perm(self, request: Request, caller: Caller) -> bytes:
        """WIPE_WRITE_PERM_OF_BROKER, 205: of the groups of that name in every cluster.

        Answer and log say how it ends: with Apache's name server, which an old mqadmin is made for, it ends by itself.
        """
        topics, remark, operation = 0, None, _operation("WipeWritePermOfBroker", caller)
        for cluster_name, broker_name in self._groups(request):
            wiped = await self._administration.wipe_write_perm(broker_name, cluster_name, operation)
            topics += wiped.topic_count
            remedy = f"mqadmin addWritePerm -b {broker_name} (RocketMQ 4.9 or later), or nsctl restore {broker_name}"
            remark = f"broker {broker_name} stays without write permission, also after it restarts, until {remedy}"
            log_write_permission_wiped(broker_name, cluster_name, remedy)
        remark = remark and remark[:MAX_REMARK_CHARACTERS]
        return answer(request, ResponseCode.SUCCESS, fields={"wipeTopicCount": str(topics)}, remark=remark)

    async def add_write_perm(self, request: Request, caller: Caller) -> bytes:
        """ADD_WRITE_PERM_OF_BROKER, 327: the same."""
        topics, operation = 0, _operation("AddWritePermOfBroker", caller)
        for cluster_name, broker_name in self._groups(request):
            topics += (await self._administration.add_write_perm(broker_name, cluster_name, operation)).topic_count
        return answer(request, ResponseCode.SUCCESS, fields={"addTopicCount": str(topics)})

    async def delete_topic(self, request: Request, caller: Caller) -> bytes:
        """DELETE_TOPIC_IN_NAMESRV, 216."""
        cluster_name = fields.text(request, "clusterName") if request.fields.get("clusterName") else None
        key = HoldKey(fields.text(request, "topic"), cluster_name)
        with suppress_refusals(Reason.TOPIC_NOT_FOUND):
            await self._administration.delete_topic(key, _operation("DeleteTopic", caller))
        return answer(request, ResponseCode.SUCCESS)

    async def update_config(self, request: Request, caller: Caller) -> bytes:
        """UPDATE_NAMESRV_CONFIG, 318: keys that gRPC changes, too, and no other."""
        await self._administration.change_settings(_properties(request.body), _operation("UpdateNamesrvConfig", caller))
        return answer(request, ResponseCode.SUCCESS)

    def _groups(self, request: Request) -> list[BrokerKey]:
        return self._state.groups_named(fields.text(request, "brokerName"), None)


def _kv_key(request: Request) -> tuple[str, str]:
    return fields.text(request, "namespace"), fields.text(request, "key")


def _operation(call: str, caller: Caller) -> Operation:
    return Operation(Cause(call, caller_of(caller.context)), sharer_of(caller.context).name)


def _properties(body: bytes) -> dict[str, str]:
    """Java's properties, ``key=value`` a line. Raises INVALID_FIELD."""
    if len(body) > _MAX_PROPERTIES_BYTES:
        raise invalid_field("body", f"has {len(body)} bytes, at most {_MAX_PROPERTIES_BYTES}")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise invalid_field("body", "is no UTF-8") from None
    values: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise invalid_field("body", f"has a line without '=': {stripped[:40]!r}")
        values[key.strip()] = value.strip()
        if len(values) > MAX_CONFIG_VALUES:
            raise invalid_field("body", f"has more than {MAX_CONFIG_VALUES} settings")
    return values


# Calls of brokers: registrations, unregistrations, heartbeats.

TINY_BODY_BYTES = 8 * 1024
"""Bodies up to this size that are not compressed are read in one step: some fifty topics, a fifth of a millisecond."""


class RegistrationCalls:
    """Requests become records, the tables are changed through the one writer, and the broker's connection is a channel.

    A registration that comes over a connection is the connection's from then on: its end is the broker's.
    """

    def __init__(
        self,
        state: RouteState,
        writer: TableWriter,
        channels: ChannelStreams,
        tally: RegistrationCounter,
        gate: Gate,
        *,
        shares: FairShares,
    ) -> None:
        self._state = state
        self._registrations = Registrations(state)
        self._removals = Removals(state)
        self._heartbeats = Heartbeats(state)
        self._writer = writer
        self._channels = channels
        self._tally = tally
        self._gate = gate
        self._shares = shares
        self._log = RegistrationLog()

    def admit(self, request: Request, caller: Caller) -> None:
        """Admits a request about a broker: checks its caller, and takes a share."""
        self._check(caller, request)
        self._shares.registrations.take(caller.sharer)

    def admit_registration(self, request: Request, caller: Caller) -> None:
        """The same for REGISTER_BROKER, whose refusals name the broker in the log."""
        with self._refusals(request, caller):
            self.admit(request, caller)

    async def register(self, request: Request, caller: Caller) -> bytes:
        """REGISTER_BROKER, 103."""
        with self._refusals(request, caller):
            return await self._register(request, caller)

    def _refusals(self, request: Request, caller: Caller) -> contextlib.AbstractContextManager[None]:
        given = request.fields.get
        cluster_name, broker_name, broker_addr = (
            given(name, "") for name in ("clusterName", "brokerName", "brokerAddr")
        )
        return self._log.refusals(cluster_name, broker_name, broker_addr, caller.name)

    async def _register(self, request: Request, caller: Caller) -> bytes:
        with (
            self._while_allowed(caller, request),
            self._tally.counting("full") as outcome,
            contextlib.ExitStack() as held,
        ):
            registration = await self._registration(request, caller)
            held.enter_context(
                self._shares.registered_topics.holding(caller.sharer, len(registration.topic_configs or ()))
            )
            cause, principal = Cause("RegisterBroker", caller_of(caller.context)), principal_name()
            unread = self._unread(request, registration)
            change = self._registrations.register_broker(registration, cause, principal, unread)
            result = await self._writer.read_and_apply(change, caller.owner)
            outcome.result = "changed" if result.changed else "unchanged"
        self._log.registered(registration, result, self._state.revision)
        master, order = (result.ha_server_addr, result.master_addr), self._order_topic_config()
        values = {name: value for name, value in zip(("haServerAddr", "masterAddr"), master, strict=True) if value}
        told = answer(request, ResponseCode.SUCCESS, order, values)
        if registration.topic_configs is None and not registration.mappings:
            self._may_repeat(request, registration, (master, order), told)
        return told

    def _may_repeat(self, request: Request, registration: Registration, said: object, told: bytes) -> None:
        """The registration brought nothing new. While that is so, the same bytes are a heartbeat."""
        registrations, heartbeats, tables = self._registrations, self._heartbeats, self._state.tables
        live = tables.broker_live_table.get(registration.live_key)
        group = tables.broker_addr_table.get(registration.broker)
        if live is None or group is None:
            return

        def again() -> bytes | None:
            if not registrations.would_change_nothing(registration, group, live):
                return None
            if (registrations.master_of(live), self._order_topic_config()) != said or not heartbeats.renew_unchanged(
                live
            ):
                return None
            self._tally.count("full", "unchanged")
            return told

        request.may_repeat(again)

    async def unregister(self, request: Request, caller: Caller) -> bytes:
        """UNREGISTER_BROKER, 104: a success also for a broker that is not there."""
        with self._while_allowed(caller, request):
            broker, address = fields.broker(request), fields.broker_addr(request)
            cause = Cause("UnregisterBroker", caller_of(caller.context))
            change = self._removals.unregister_broker(broker, address, RemovalReason.UNREGISTERED, None, cause)
            removed = await self._writer.apply(change, caller.owner)
        for gone in removed:
            log_removed(gone)
        return answer(request, ResponseCode.SUCCESS)

    def query_data_version(self, request: Request, caller: Caller) -> bytes:
        """QUERY_DATA_VERSION, 322: a question, and a heartbeat."""
        self._check(caller, request)
        with self._tally.counting("query") as outcome:
            broker, address = fields.broker(request), fields.broker_addr(request)
            if len(request.body) > MAX_DATA_VERSION_BYTES:
                raise limit_exceeded("bytes of a DataVersion", len(request.body), MAX_DATA_VERSION_BYTES)
            version = data_version_of(read_json(_decoded(request.body)))
            changed, held = self._heartbeats.query_by_address(broker, fields.broker_id(request), address, version)
            outcome.result = "changed" if changed else "unchanged"
        body = b"" if held is None else _data_version(held)
        told = answer(request, ResponseCode.SUCCESS, body, {"changed": "true" if changed else "false"})
        if not changed:  # else it registers now, and asks with another version
            self._is_heartbeat(request, LiveKey(broker.cluster_name, address), "query", told)
        return told

    def heartbeat(self, request: Request, caller: Caller) -> bytes:
        """BROKER_HEARTBEAT, 904: by cluster and address, as it has no broker id."""
        self._check(caller, request)
        with self._tally.counting("heartbeat") as outcome:
            cluster_name, address = fields.text(request, "clusterName"), fields.broker_addr(request)
            if self._heartbeats.heartbeat_by_address(LiveKey(cluster_name, address)):
                outcome.result = "unchanged"
        told = answer(request, ResponseCode.SUCCESS)
        self._is_heartbeat(request, LiveKey(cluster_name, address), "heartbeat", told)
        return told

    def _is_heartbeat(self, request: Request, key: LiveKey, kind: Kind, told: bytes) -> None:
        """A broker was seen. While its row is the same, so is the answer."""
        heartbeats, tally = self._heartbeats, self._tally
        live = self._state.tables.broker_live_table.get(key)

        def again() -> bytes | None:
            if live is None or not heartbeats.renew_unchanged(live):
                return None
            tally.count(kind, "unchanged")
            return told

        if live is not None and live.topic_by_topic and self._state.is_confirmed(live):
            request.may_repeat(again)

    async def register_topic(self, request: Request, caller: Caller) -> bytes:
        """REGISTER_TOPIC_IN_NAMESRV, 217: queues by broker name. Groups that are not there are passed over."""
        topic = fields.text(request, "topic")
        check(("topic", topic, TOPIC))
        is_large = len(request.body) > LARGE_BYTES
        body = await self._writer.read(lambda: read_json(_decoded(request.body)), caller.owner, is_large=is_large)
        queues = self._queues(body)
        named = [route_data_pb2.QueueData(cluster_name=key.cluster_name, broker_name=key.broker_name) for key in queues]
        self._gate.check(caller, Grade.REGISTRATIONS, registration_pb.RegisterTopicRequest(queue_datas=named))
        if queues:
            cause = Cause("RegisterTopic", caller_of(caller.context))
            change = self._registrations.register_topic(topic, queues, cause)
            if await self._writer.apply(change, caller.owner):
                log_topic_registered(topic, len(queues), self._state.revision)
        return answer(request, ResponseCode.SUCCESS)

    def _check(self, caller: Caller, request: Request) -> None:
        """Checks that the caller may speak for the broker of a request, and for the one that has its address."""
        if not self._gate.is_open(Grade.REGISTRATIONS):
            self._gate.check(caller, Grade.REGISTRATIONS, _about_broker(request))

    def _while_allowed(self, caller: Caller, request: Request) -> contextlib.AbstractContextManager[None]:
        """Checks the same. The context ends with the same errors once changed permits do not admit the request."""
        if self._gate.is_open(Grade.REGISTRATIONS):
            return NO_LIMIT
        return self._gate.while_allowed(caller, Grade.REGISTRATIONS, _about_broker(request))

    async def _registration(self, request: Request, caller: Caller) -> Registration:
        broker, broker_id, broker_addr = fields.broker(request), fields.broker_id(request), fields.broker_addr(request)
        ha_server_addr = request.fields.get("haServerAddr") or None
        zone_name = request.fields.get("__ZONE_NAME") or None
        check(("__ZONE_NAME", zone_name, NAME))
        key, live = LiveKey(broker.cluster_name, broker_addr), self._state.tables.broker_live_table
        if len(live) >= limits.MAX_LIVE_BROKERS and key not in live:
            raise limit_exceeded("live brokers", len(live) + 1, limits.MAX_LIVE_BROKERS)
        body = await self._body(request, caller, broker)
        if ha_server_addr is not None and not fields.is_address(ha_server_addr):
            body.odd_addresses.insert(0, ha_server_addr)
            ha_server_addr = None
        acting = fields.switch(request, "enableActingMaster")
        registration = Registration(
            broker=broker,
            broker_id=broker_id,
            broker_addr=broker_addr,
            data_version=body.data_version,
            topic_configs=body.topic_configs,
            ha_server_addr=ha_server_addr,
            filter_servers=body.filter_servers,
            channel_id=caller.channel(self._channels, self._gate),
            zone_name=zone_name,
            enable_acting_master=acting,
            timeout_seconds=_timeout_seconds(request) if acting else None,
            topic_by_topic=True,
            mappings=body.mappings,
            table_fingerprint=body.table_fingerprint,
        )
        if body.skipped:
            self._tally.skipped(body.skipped)
            self._log.topics_skipped(registration, body.skipped, body.problems)
        if body.odd_addresses:
            self._log.addresses_skipped(registration, body.odd_addresses)
        return registration

    async def _body(self, request: Request, caller: Caller, broker: BrokerKey) -> RegistrationBody:
        """The body, without its topics if they are those that are held."""
        held = self._state.index.table_fingerprints.get(broker)
        read, size = partial(self._read_body, request, broker, held), len(request.body)
        compressed = is_compressed(request.body)
        if size <= TINY_BODY_BYTES and not compressed:
            return read()
        return await self._writer.read(read, caller.owner, is_large=compressed or size > LARGE_BYTES, is_next=False)

    def _read_body(
        self, request: Request, broker: BrokerKey, held: TopicTableFingerprint | None = None
    ) -> RegistrationBody:
        crc32, state = fields.number(request, "bodyCrc32", fields.INT_BITS), self._state
        known = state.index.topics_by_broker.get(broker) or state.tables.topic_queue_table  # the first is quicker
        return read_registration(request.body, crc32, known, held)

    def _unread(self, request: Request, registration: Registration) -> UnreadTopics:
        """The topics that are held, should they be lost before the registration is made."""
        broker = registration.broker
        return UnreadTopics(
            lambda: registration.topic_count, lambda: self._read_body(request, broker).topic_configs or {}
        )

    def _queues(self, route: object) -> dict[BrokerKey, QueueNumbers]:
        """The queues of a TopicRouteData by group. A name in several clusters is the group that registered first."""
        rows = route.get("queueDatas") if isinstance(route, dict) else None
        if not isinstance(rows, list | None) or len(rows or ()) > limits.MAX_QUEUE_DATAS_PER_TOPIC:
            raise invalid_field("body.queueDatas", f"is no list of at most {limits.MAX_QUEUE_DATAS_PER_TOPIC}")
        wanted = {_name_of(row): _numbers(row) for row in rows or ()}
        found: dict[BrokerKey, QueueNumbers] = {}
        for key in self._state.tables.broker_addr_table:
            numbers = wanted.pop(key.broker_name, None)
            if numbers is not None:
                found[key] = numbers
        return found

    def _order_topic_config(self) -> bytes:
        """The ordered-topic configuration as a KVTable; empty if there is none."""
        state = self._state
        if not state.behaviour.return_order_topic_config_to_broker:
            return b""
        entries = state.kv_config.entries(ORDER_TOPIC_CONFIG)
        return _json({"table": dict(entries)}) if entries else b""


def _timeout_seconds(request: Request) -> float | None:
    """Returns the timeout that the broker asks for, within the limits, or None."""
    millis = fields.number(request, "heartbeatTimeoutMillis", fields.LONG_BITS)
    if millis <= 0:
        return None
    return min(max(millis, limits.MIN_HEARTBEAT_TIMEOUT_MILLIS), limits.MAX_HEARTBEAT_TIMEOUT_MILLIS) / 1000


def _numbers(row: Mapping[str, Any]) -> QueueNumbers:
    try:
        return queue_numbers(row)
    except ValueError as error:
        raise invalid_field("body.queueDatas", str(error)) from None


def _name_of(row: object) -> str:
    name = row.get("brokerName") if isinstance(row, dict) else None
    if not isinstance(name, str):
        raise invalid_field("body.queueDatas.brokerName", "is missing")
    return name


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise invalid_field("body", "is no UTF-8") from None


def _about_broker(request: Request) -> registration_pb.BrokerHeartbeatRequest:
    """A request of RegistrationService that is about the same broker; none of its names has been checked."""
    given = request.fields
    return registration_pb.BrokerHeartbeatRequest(
        broker=route_data_pb2.BrokerIdentity(
            cluster_name=_encodable(given.get("clusterName", "")),
            broker_name=_encodable(given.get("brokerName", "")),
            broker_addr=_encodable(given.get("brokerAddr", "")),
        )
    )


def _encodable(text: str) -> str:
    """A text without halves of characters, which JSON can have and no message can."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _data_version(version: DataVersion) -> bytes:
    return _json(
        {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp_millis}
    )


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# The table of requests: what each needs, and what answers it.

Asked = Callable[[Request, Caller], Awaitable[bytes]]
AtOnce = Callable[[Request, Caller], bytes | None]
"""Answers at once, or returns None if the call has to wait."""
Admit = Callable[[Request, Caller], None]
"""Admits a request: takes one of ``shares``, or raises Refused."""


class InTurn(NamedTuple):
    """A call that is made after the earlier ones of its connection that are not answered at once."""

    call: Callable[[Request, Caller], Awaitable[bytes]]
    admit: Admit
    shares: Shares
    """One of them is taken until it is answered."""
    is_question: bool = True
    """Whether it only reads. Sent one-way, it is dropped."""
    reads_body: bool = False


class Calls(NamedTuple):
    """What answers requests, by their code."""

    at_once: Mapping[int, AtOnce]
    in_turn: Mapping[int, InTurn]


def calls_of(
    lookups: LookupCalls,
    lists: ListCalls,
    registrations: RegistrationCalls,
    operators: OperatorCalls,
    gate: Gate,
    *,
    shares: FairShares,
) -> Calls:
    """The calls of a name server, each with the grade that it needs. It is checked again when a call is made."""
    at_once: dict[int, AtOnce] = {
        Code.GET_ROUTEINFO_BY_TOPIC: gate.guarded(Grade.LOOKUPS, lookups.route),
        Code.GET_BROKER_MEMBER_GROUP: gate.guarded(Grade.LOOKUPS, lookups.member_group),
        # These know the groups that they are about, and check themselves who may speak for them.
        Code.QUERY_DATA_VERSION: registrations.query_data_version,
        Code.BROKER_HEARTBEAT: registrations.heartbeat,
    }

    def admit(grade: Grade, of: Shares, _request: Request, caller: Caller) -> None:
        gate.check(caller, grade)
        of.take(caller.sharer)

    def asked(call: Asked, grade: Grade = Grade.LOOKUPS) -> InTurn:
        of = shares.lookups if grade is Grade.LOOKUPS else shares.admin_calls
        return InTurn(gate.guarded(grade, call), partial(admit, grade, of), of)

    def changing(call: Asked, grade: Grade = Grade.OPERATORS, *, reads_body: bool = False) -> InTurn:
        return asked(call, grade)._replace(is_question=False, reads_body=reads_body)

    registering = shares.registrations
    in_turn = {
        Code.GET_ROUTEINFO_BY_TOPIC: asked(lookups.route_elsewhere),
        Code.GET_BROKER_CLUSTER_INFO: asked(lists.cluster_info),
        Code.GET_ALL_TOPIC_LIST: asked(lists.all_topics),
        Code.GET_TOPICS_BY_CLUSTER: asked(lists.topics_of_cluster),
        Code.GET_SYSTEM_TOPIC_LIST: asked(lists.system_topics),
        Code.GET_UNIT_TOPIC_LIST: asked(lists.unit_topics),
        Code.GET_UNIT_SUB_TOPIC_LIST: asked(lists.unit_sub_topics),
        Code.GET_UNIT_SUB_UNUNIT_TOPIC_LIST: asked(lists.unit_sub_ununit_topics),
        Code.GET_KV_CONFIG: asked(operators.get_kv_config),
        Code.GET_KVLIST_BY_NAMESPACE: asked(operators.list_kv_configs),
        Code.GET_NAMESRV_CONFIG: asked(operators.get_config, Grade.OPERATORS),
        Code.REGISTER_BROKER: InTurn(
            registrations.register, registrations.admit_registration, registering, is_question=False, reads_body=True
        ),
        Code.UNREGISTER_BROKER: InTurn(registrations.unregister, registrations.admit, registering, is_question=False),
        Code.REGISTER_TOPIC: InTurn(
            registrations.register_topic,
            partial(admit, Grade.REGISTRATIONS, registering),
            registering,
            is_question=False,
            reads_body=True,
        ),
        Code.PUT_KV_CONFIG: changing(operators.put_kv_config),
        Code.DELETE_KV_CONFIG: changing(operators.delete_kv_config),
        Code.WIPE_WRITE_PERM_OF_BROKER: changing(operators.wipe_write_perm),
        Code.ADD_WRITE_PERM_OF_BROKER: changing(operators.add_write_perm),
        Code.DELETE_TOPIC_IN_NAMESRV: changing(operators.delete_topic),
        Code.UPDATE_NAMESRV_CONFIG: changing(operators.update_config, Grade.SETTINGS, reads_body=True),
    }
    return Calls(at_once, {int(code): call for code, call in in_turn.items()})
