"""What brokers call: registrations, unregistrations, signs of life."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from groundwork.topic_rules import MAX_PERM, MAX_QUEUE_NUMS
from namesrv.config import limits
from namesrv.core.changes import Cause
from namesrv.core.errors import InvalidField, LimitExceeded
from namesrv.core.model import (
    ORDER_TOPIC_CONFIG,
    BrokerKey,
    DataVersion,
    LiveKey,
    QueueNumbers,
    Registration,
    RemovalReason,
    TableMark,
)
from namesrv.core.registrations import RouteInfoManager, TopicsNotRead
from namesrv.core.slices import run_sync
from namesrv.remoting.caller import Caller, Gate, Grade
from namesrv.remoting.registered_topics import RegistrationBody
from namesrv.remoting.registration_body import data_version_of, is_compressed, read_registration
from namesrv.remoting.wire import fields
from namesrv.remoting.wire.codes import ResponseCode
from namesrv.remoting.wire.headers import Request, answer
from namesrv.remoting.wire.json_reader import read_json
from namesrv.server.auth.callers import caller_of, owner
from namesrv.server.background.channel_streams import ChannelStreams
from namesrv.server.background.table_writer import TableWriter
from namesrv.server.counters import RegistrationCounter
from namesrv.server.route_logging import log_registered, log_removed, log_topic_registered, log_topics_skipped
from namesrv.server.services import field_rules

TINY_BODY_BYTES = 8 * 1024
"""Bodies up to this size that are not compressed are read in one step: some fifty topics, a fifth of a millisecond."""

SMALL_BODY_BYTES = 64 * 1024
"""Bodies up to this size are read without waiting for large ones: about a millisecond."""


class RegistrationCalls:
    """Requests become records, the tables are changed through the one writer, and the broker's connection is a channel.

    A registration that comes over a connection is the connection's from then on: its end is the broker's.
    """

    def __init__(
        self,
        manager: RouteInfoManager,
        writer: TableWriter,
        channels: ChannelStreams,
        tally: RegistrationCounter,
        gate: Gate,
    ) -> None:
        self._manager = manager
        self._writer = writer
        self._channels = channels
        self._tally = tally
        self._gate = gate
        self._turn = asyncio.Lock()
        """Large bodies are read one at a time."""

    async def register(self, request: Request, caller: Caller) -> bytes:
        """REGISTER_BROKER, 103."""
        self._check(caller, request)
        with self._tally.counting("full") as outcome:
            registration = await self._registration(request, caller)
            cause = Cause("RegisterBroker", caller_of(caller.context))
            try:
                result = await self._writer.apply(self._manager.register_broker(registration, cause, owner()))
            except TopicsNotRead:  # the group's queues have changed while this stood in line
                body = await self._body(request, registration.broker, None)
                registration = replace(registration, topic_configs=body.topic_configs)
                result = await self._writer.apply(self._manager.register_broker(registration, cause, owner()))
            outcome.result = "changed" if result.changed else "unchanged"
        log_registered(registration, result, self._manager.revision)
        told = {"haServerAddr": result.ha_server_addr, "masterAddr": result.master_addr}
        values = {name: value for name, value in told.items() if value}
        return answer(request, ResponseCode.SUCCESS, self._order_topic_config(), values)

    async def unregister(self, request: Request, caller: Caller) -> bytes:
        """UNREGISTER_BROKER, 104: a success also for a broker that is not there."""
        self._check(caller, request)
        broker, address = fields.broker(request), fields.broker_addr(request)
        cause = Cause("UnregisterBroker", caller_of(caller.context))
        change = self._manager.unregister_broker(broker, address, RemovalReason.UNREGISTERED, None, cause)
        removed = await self._writer.apply(change)
        if removed is not None:
            log_removed(removed)
        return answer(request, ResponseCode.SUCCESS)

    def query_data_version(self, request: Request, caller: Caller) -> bytes:
        """QUERY_DATA_VERSION, 322: a question, and a sign of life."""
        self._check(caller, request)
        with self._tally.counting("query") as outcome:
            broker, address = fields.broker(request), fields.broker_addr(request)
            version = data_version_of(read_json(_decoded(request.body)))
            changed, held = self._manager.query_by_address(broker, fields.broker_id(request), address, version)
            outcome.result = "changed" if changed else "unchanged"
        body = b"" if held is None else _data_version(held)
        return answer(request, ResponseCode.SUCCESS, body, {"changed": "true" if changed else "false"})

    def heartbeat(self, request: Request, caller: Caller) -> bytes:
        """BROKER_HEARTBEAT, 904: by cluster and address, as it has no broker id."""
        self._check(caller, request)
        with self._tally.counting("heartbeat") as outcome:
            cluster_name, address = fields.text(request, "clusterName"), fields.broker_addr(request)
            if self._manager.heartbeat_by_address(LiveKey(cluster_name, address)):
                outcome.result = "unchanged"
        return answer(request, ResponseCode.SUCCESS)

    async def register_topic(self, request: Request, caller: Caller) -> bytes:
        """REGISTER_TOPIC_IN_NAMESRV, 217: queues by broker name. Groups that are not there are passed over."""
        topic = fields.text(request, "topic")
        field_rules.check_topic("topic", topic)
        queues = self._queues(read_json(_decoded(request.body)))
        named = [route_data_pb2.QueueData(cluster_name=key.cluster_name, broker_name=key.broker_name) for key in queues]
        self._gate.check(caller, Grade.REGISTRATIONS, pb.RegisterTopicRequest(queue_datas=named))
        if queues:
            cause = Cause("RegisterTopic", caller_of(caller.context))
            if await self._writer.apply(self._manager.register_topic(topic, queues, cause)):
                log_topic_registered(topic, len(queues), self._manager.revision)
        return answer(request, ResponseCode.SUCCESS)

    # Details

    def _check(self, caller: Caller, request: Request) -> None:
        """Checks that the caller may speak for the broker of a request, and for the one that has its address."""
        if self._gate.is_open(Grade.REGISTRATIONS):
            return
        given = request.fields
        named = route_data_pb2.BrokerIdentity(
            cluster_name=_encodable(given.get("clusterName", "")),
            broker_name=_encodable(given.get("brokerName", "")),
            broker_addr=_encodable(given.get("brokerAddr", "")),
        )
        self._gate.check(caller, Grade.REGISTRATIONS, pb.BrokerHeartbeatRequest(broker=named))

    async def _registration(self, request: Request, caller: Caller) -> Registration:
        broker, broker_id, broker_addr = fields.broker(request), fields.broker_id(request), fields.broker_addr(request)
        ha_server_addr = fields.ha_server_addr(request)
        zone_name = request.fields.get("__ZONE_NAME") or None
        if zone_name is not None:
            field_rules.check_name("__ZONE_NAME", zone_name)
        key, live = LiveKey(broker.cluster_name, broker_addr), self._manager.tables.broker_live_table
        if len(live) >= limits.MAX_LIVE_BROKERS and key not in live:
            raise LimitExceeded("live brokers", len(live) + 1, limits.MAX_LIVE_BROKERS)
        body = await self._body(request, broker, self._manager.tables.table_marks.get(broker))
        acting = fields.switch(request, "enableActingMaster")
        registration = Registration(
            broker=broker,
            broker_id=broker_id,
            broker_addr=broker_addr,
            data_version=body.data_version,
            topic_configs=body.topic_configs,
            ha_server_addr=ha_server_addr,
            filter_servers=body.filter_servers,
            channel_id=caller.channel(self._channels),
            zone_name=zone_name,
            enable_acting_master=acting,
            timeout_seconds=_timeout_seconds(request) if acting else None,
            topic_by_topic=True,
            mappings=body.mappings,
            table_mark=body.table_mark,
        )
        if body.skipped:
            self._tally.topics_skipped += body.skipped
            log_topics_skipped(registration, body.skipped, body.problems)
        return registration

    async def _body(self, request: Request, broker: BrokerKey, held: TableMark | None) -> RegistrationBody:
        crc32, tables = fields.number(request, "bodyCrc32"), self._manager.tables
        known_topics = tables.topics_by_broker.get(broker) or tables.topic_queue_table  # the first is quicker
        steps = read_registration(request.body, crc32, known_topics, held)
        if len(request.body) <= TINY_BODY_BYTES and not is_compressed(request.body):
            return run_sync(steps)
        if len(request.body) <= SMALL_BODY_BYTES:
            return await self._writer.beside_changes(steps)
        async with self._turn:
            return await self._writer.beside_changes(steps)

    def _queues(self, route: object) -> dict[BrokerKey, QueueNumbers]:
        """The queues of a TopicRouteData by group. A name in several clusters is the group that registered first."""
        rows = route.get("queueDatas") if isinstance(route, dict) else None
        if not isinstance(rows, list | None) or len(rows or ()) > limits.MAX_QUEUE_DATAS_PER_TOPIC:
            raise InvalidField("body.queueDatas", f"is no list of at most {limits.MAX_QUEUE_DATAS_PER_TOPIC}")
        wanted = {_name_of(row): _numbers(row) for row in rows or ()}
        found: dict[BrokerKey, QueueNumbers] = {}
        for key in self._manager.tables.broker_addr_table:
            numbers = wanted.pop(key.broker_name, None)
            if numbers is not None:
                found[key] = numbers
        return found

    def _order_topic_config(self) -> bytes:
        """The ordered-topic configuration as a KVTable; empty if there is none."""
        manager = self._manager
        if not manager.behaviour.return_order_topic_config_to_broker:
            return b""
        entries = manager.kv_config.entries(ORDER_TOPIC_CONFIG)
        return _json({"table": dict(entries)}) if entries else b""


def _timeout_seconds(request: Request) -> float | None:
    """How long the broker asks to be given, within our limits; None if it does not ask."""
    millis = fields.number(request, "heartbeatTimeoutMillis")
    if millis <= 0:
        return None
    return min(max(millis, limits.MIN_HEARTBEAT_TIMEOUT_MILLIS), limits.MAX_HEARTBEAT_TIMEOUT_MILLIS) / 1000


def _numbers(row: Mapping[str, Any]) -> QueueNumbers:
    names = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")
    numbers: list[int] = []
    for name, highest in zip(names, (MAX_QUEUE_NUMS, MAX_QUEUE_NUMS, MAX_PERM, 2**31 - 1), strict=True):
        value = row.get(name, 0)
        if type(value) is not int or not 0 <= value <= highest:
            raise InvalidField(f"body.queueDatas.{name}", f"is no number from 0 to {highest}")
        numbers.append(value)
    read, write, perm, flag = numbers
    return read, write, perm, flag


def _name_of(row: object) -> str:
    name = row.get("brokerName") if isinstance(row, dict) else None
    if not isinstance(name, str):
        raise InvalidField("body.queueDatas.brokerName", "is missing")
    return name


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidField("body", "is no UTF-8") from None


def _encodable(text: str) -> str:
    """A text without halves of characters, which JSON can have and no message can."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _data_version(version: DataVersion) -> bytes:
    return _json(
        {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp_millis}
    )


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
