"""RegistrationService: what brokers and their agents call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.config import limits
from namesrv.core.errors import InvalidField, LimitExceeded
from namesrv.core.records.changes import Cause
from namesrv.core.records.rows import DataVersion, LiveKey, Registration
from namesrv.core.routes.kv_config import ORDER_TOPIC_CONFIG
from namesrv.core.routes.route_info_manager import RouteInfoManager
from namesrv.server.auth.callers import caller_of
from namesrv.server.background.channel_streams import ChannelStreams
from namesrv.server.background.table_writer import TableWriter, run_cooperatively
from namesrv.server.counters import RegistrationCounter, Result, kind_of
from namesrv.server.route_logging import log_registered, log_removed, log_topic_registered
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import request_validation
from namesrv.server.services.registration.parts import RegistrationParts


class RegistrationServicer:
    """Checks requests, has the tables changed, answers."""

    inline_calls = ("QueryDataVersion", "BrokerHeartbeat")
    """Calls that never wait."""

    def __init__(
        self,
        manager: RouteInfoManager,
        writer: TableWriter,
        channels: ChannelStreams,
        parts: RegistrationParts,
        idle_timeout_millis: int,
        *,
        tally: RegistrationCounter | None = None,
    ) -> None:
        self._manager = manager
        self._writer = writer
        self._channels = channels
        self._parts = parts
        self._idle_timeout_millis = idle_timeout_millis
        self._tally = tally or RegistrationCounter()

    async def RegisterBroker(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.RegisterBrokerRequest, context: Context
    ) -> pb.RegisterBrokerResponse:
        """REGISTER_BROKER, 103."""
        with self._tally.counting(kind_of(request)) as outcome:
            answer = await self._register(request, context)
            outcome.result = "staged" if answer.staged_parts else _result(changed=answer.changed)
            return answer

    async def _register(self, request: pb.RegisterBrokerRequest, context: Context) -> pb.RegisterBrokerResponse:
        identity = request_validation.broker_identity(request.broker)
        version = request_validation.data_version("data_version", request.data_version)
        if request.HasField("ha_server_addr"):
            request_validation.check_address("ha_server_addr", request.ha_server_addr)
        request_validation.check_topic_count(request)
        await run_cooperatively(request_validation.check_body_crc32(request))
        topic_configs: Iterable[route_data_pb2.TopicConfig] = request.topic_configs
        if request.HasField("part"):
            _check_given_channel(request.channel_id, "a registration in parts needs a channel")
            self._manager.channels.check_open(request.channel_id)
            staged = self._parts.add(LiveKey(identity.broker.cluster_name, identity.broker_addr), version, request)
            if isinstance(staged, int):
                return pb.RegisterBrokerResponse(header=self._manager.header(), changed=False, staged_parts=staged)
            topic_configs = staged
        registration = self._registration(request, identity, version, topic_configs)
        result = await self._writer.apply(
            self._manager.register_broker(registration, Cause("RegisterBroker", caller_of(context)))
        )
        log_registered(registration, result, self._manager.revision)
        return pb.RegisterBrokerResponse(
            header=self._manager.header(),
            ha_server_addr=result.ha_server_addr,
            master_addr=result.master_addr,
            generation=result.generation,
            changed=result.changed,
            order_topic_config=self._order_topic_config(),
        )

    async def UnregisterBroker(  # noqa: N802
        self, request: pb.UnregisterBrokerRequest, context: Context
    ) -> pb.UnregisterBrokerResponse:
        """UNREGISTER_BROKER, 104."""
        identity = request_validation.broker_identity(request.broker)
        reason = request_validation.unregister_reason(request.reason)
        generation = request.generation if request.HasField("generation") else None
        cause = Cause("UnregisterBroker", caller_of(context))
        change = self._manager.unregister_broker(identity.broker, identity.broker_addr, reason, generation, cause)
        removed = await self._writer.apply(change)
        if removed is not None:
            log_removed(removed)
        return pb.UnregisterBrokerResponse(header=self._manager.header(), removed=removed is not None)

    async def QueryDataVersion(  # noqa: N802
        self, request: pb.QueryDataVersionRequest, _context: Context
    ) -> bytes:
        """QUERY_DATA_VERSION, 322."""
        with self._tally.counting("query") as outcome:
            identity = request_validation.broker_identity(request.broker)
            version = request_validation.data_version("data_version", request.data_version)
            changed, held = self._manager.query_data_version(*identity, version)
            outcome.result = _result(changed=changed)
        data_version = _data_version_message(held) if held else None
        answer = pb.QueryDataVersionResponse(changed=changed, data_version=data_version)
        return self._manager.header_fragment() + answer.SerializeToString()

    async def BrokerHeartbeat(  # noqa: N802
        self, request: pb.BrokerHeartbeatRequest, _context: Context
    ) -> bytes:
        """BROKER_HEARTBEAT, 904."""
        with self._tally.counting("heartbeat") as outcome:
            self._manager.broker_heartbeat(*request_validation.broker_identity(request.broker))
            outcome.result = "unchanged"
        return self._manager.header_fragment()  # all of a BrokerHeartbeatResponse

    async def RegisterTopic(  # noqa: N802
        self, request: pb.RegisterTopicRequest, context: Context
    ) -> pb.RegisterTopicResponse:
        """REGISTER_TOPIC_IN_NAMESRV, 217."""
        queues = request_validation.topic_queues(request)
        changed = await self._writer.apply(
            self._manager.register_topic(request.topic, queues, Cause("RegisterTopic", caller_of(context)))
        )
        if changed:
            log_topic_registered(request.topic, len(queues), self._manager.revision)
        return pb.RegisterTopicResponse(header=self._manager.header(), changed=changed)

    async def OpenChannel(  # noqa: N802
        self, request: pb.OpenChannelRequest, _context: Context
    ) -> AsyncIterator[pb.OpenChannelResponse]:
        """What RocketMQ's TCP connection and BrokerHousekeepingService were."""
        if len(request.holder) > limits.MAX_HOLDER_LENGTH:
            raise InvalidField("holder", f"has {len(request.holder)} characters, at most {limits.MAX_HOLDER_LENGTH}")
        async with self._channels.open(request.holder) as (channel_id, events):
            try:
                opened = pb.ChannelOpened(channel_id=channel_id, idle_timeout_millis=self._idle_timeout_millis)
                yield pb.OpenChannelResponse(opened=opened)
                while True:
                    event = await events.get()
                    yield event
                    if event.HasField("closing"):
                        return
            finally:
                self._parts.drop_channel(channel_id)

    async def HandOverChannel(  # noqa: N802
        self, request: pb.HandOverChannelRequest, _context: Context
    ) -> pb.HandOverChannelResponse:
        """The end of a channel is announced; RocketMQ has nothing like it."""
        _check_given_channel(request.channel_id, "a handover is of a channel")
        brokers = self._manager.hand_over_channel(request.channel_id)
        return pb.HandOverChannelResponse(
            header=self._manager.header(),
            channel_grace_millis=round(self._manager.behaviour.channel_grace_seconds * 1000),
            broker_count=brokers,
        )

    def _order_topic_config(self) -> Mapping[str, str]:
        wanted = self._manager.behaviour.return_order_topic_config_to_broker
        return self._manager.kv_config.entries(ORDER_TOPIC_CONFIG) if wanted else {}

    def _registration(
        self,
        request: pb.RegisterBrokerRequest,
        identity: request_validation.BrokerIdentity,
        version: DataVersion,
        topic_configs: Iterable[route_data_pb2.TopicConfig],
    ) -> Registration:
        tables = self._manager.tables
        registration = Registration(
            broker=identity.broker,
            broker_id=identity.broker_id,
            broker_addr=identity.broker_addr,
            data_version=version,
            topic_configs=request_validation.topic_configs(topic_configs, tables.topic_queue_table),
            ha_server_addr=request.ha_server_addr if request.HasField("ha_server_addr") else None,
            filter_servers=request_validation.filter_servers(request),
            channel_id=request.channel_id if request.HasField("channel_id") else None,
            base_version=(
                request_validation.data_version("base_version", request.base_version)
                if request.HasField("base_version")
                else None
            ),
            zone_name=request.zone_name if request.HasField("zone_name") else None,
            enable_acting_master=request.enable_acting_master if request.HasField("enable_acting_master") else None,
            timeout_seconds=request_validation.heartbeat_timeout_seconds(request),
        )
        if registration.zone_name is not None:
            request_validation.check_name("zone_name", registration.zone_name)
        count = len(tables.broker_live_table)
        if count >= limits.MAX_LIVE_BROKERS and registration.live_key not in tables.broker_live_table:
            raise LimitExceeded("live brokers", count + 1, limits.MAX_LIVE_BROKERS)
        return registration


def _result(*, changed: bool) -> Result:
    return "changed" if changed else "unchanged"


def _check_given_channel(channel_id: str, why: str) -> None:
    """Whoever named none is not to open another one, as ChannelGone would have it."""
    if not channel_id:
        raise InvalidField("channel_id", f"is missing; {why}")


def _data_version_message(version: DataVersion) -> route_data_pb2.DataVersion:
    return route_data_pb2.DataVersion(
        timestamp_millis=version.timestamp_millis, counter=version.counter, state_version=version.state_version
    )
