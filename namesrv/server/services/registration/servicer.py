"""RegistrationService: what brokers and their agents call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import lru_cache

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from groundwork.shares import Shares
from namesrv.config import limits
from namesrv.core.changes import Cause
from namesrv.core.errors import InvalidField
from namesrv.core.model import ORDER_TOPIC_CONFIG, DataVersion
from namesrv.core.registrations import RouteInfoManager, TopicsNotRead
from namesrv.server.auth.callers import caller_of, owner, sharer_of
from namesrv.server.background.channel_streams import ChannelStreams
from namesrv.server.background.table_writer import TableWriter
from namesrv.server.counters import Kind, RegistrationCounter, Result, kind_of
from namesrv.server.route_logging import log_registered, log_removed, log_topic_registered
from namesrv.server.rpc.handlers import Context
from namesrv.server.rpc.repeated_calls import may_repeat
from namesrv.server.services.registration import requests
from namesrv.server.services.registration.parts import RegistrationParts
from namesrv.server.services.registration.reader import RegistrationReader


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
        registered_topics: Shares | None = None,
    ) -> None:
        self._manager = manager
        self._writer = writer
        self._channels = channels
        self._parts = parts
        self._reader = RegistrationReader(manager, writer, parts, registered_topics)
        self._idle_timeout_millis = idle_timeout_millis
        self._tally = tally or RegistrationCounter()

    async def RegisterBroker(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.RegisterBrokerRequest, context: Context
    ) -> pb.RegisterBrokerResponse:
        """REGISTER_BROKER, 103."""
        room = self._reader.room_for(request, sharer_of(context))
        with self._tally.counting(kind_of(request)) as outcome, room:
            answer = await self._register(request, context)
            outcome.result = "staged" if answer.staged_parts else _result(changed=answer.changed)
            return answer

    async def _register(self, request: pb.RegisterBrokerRequest, context: Context) -> pb.RegisterBrokerResponse:
        registration = await self._reader.read(request, sharer_of(context))
        if isinstance(registration, int):
            return pb.RegisterBrokerResponse(header=self._manager.header(), changed=False, staged_parts=registration)
        cause = Cause("RegisterBroker", caller_of(context))
        try:
            result = await self._writer.apply(self._manager.register_broker(registration, cause, owner()))
        except TopicsNotRead:  # the broker left, or registered something else, while this stood in line
            registration = await self._reader.with_topics(request, registration)
            result = await self._writer.apply(self._manager.register_broker(registration, cause, owner()))
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
        identity = requests.broker_identity(request.broker)
        reason = requests.unregister_reason(request.reason)
        generation = request.generation if request.HasField("generation") else None
        cause = Cause("UnregisterBroker", caller_of(context))
        change = self._manager.unregister_broker(identity.broker, identity.broker_addr, reason, generation, cause)
        removed = await self._writer.apply(change)
        if removed is not None:
            log_removed(removed)
        return pb.UnregisterBrokerResponse(header=self._manager.header(), removed=removed is not None)

    async def QueryDataVersion(  # noqa: N802
        self, request: pb.QueryDataVersionRequest, context: Context
    ) -> bytes:
        """QUERY_DATA_VERSION, 322."""
        with self._tally.counting("query") as outcome:
            identity = requests.broker_identity(request.broker)
            version = requests.data_version("data_version", request.data_version)
            changed, held = self._manager.query_data_version(*identity, version)
            outcome.result = _result(changed=changed)
        after_header = _after_header(held, changed=changed)
        if not changed:  # else it registers now, and asks with another version
            self._may_repeat(context, identity, "query", after_header)
        return self._manager.header_fragment() + after_header

    async def BrokerHeartbeat(  # noqa: N802
        self, request: pb.BrokerHeartbeatRequest, context: Context
    ) -> bytes:
        """BROKER_HEARTBEAT, 904."""
        with self._tally.counting("heartbeat") as outcome:
            identity = requests.broker_identity(request.broker)
            self._manager.broker_heartbeat(*identity)
            outcome.result = "unchanged"
        self._may_repeat(context, identity, "heartbeat", b"")
        return self._manager.header_fragment()  # all of a BrokerHeartbeatResponse

    async def RegisterTopic(  # noqa: N802
        self, request: pb.RegisterTopicRequest, context: Context
    ) -> pb.RegisterTopicResponse:
        """REGISTER_TOPIC_IN_NAMESRV, 217."""
        queues = requests.topic_queues(request)
        changed = await self._writer.apply(
            self._manager.register_topic(request.topic, queues, Cause("RegisterTopic", caller_of(context)))
        )
        if changed:
            log_topic_registered(request.topic, len(queues), self._manager.revision)
        return pb.RegisterTopicResponse(header=self._manager.header(), changed=changed)

    async def OpenChannel(  # noqa: N802
        self, request: pb.OpenChannelRequest, context: Context
    ) -> AsyncIterator[pb.OpenChannelResponse]:
        """What RocketMQ's TCP connection and BrokerHousekeepingService were."""
        if len(request.holder) > limits.MAX_HOLDER_LENGTH:
            raise InvalidField("holder", f"has {len(request.holder)} characters, at most {limits.MAX_HOLDER_LENGTH}")
        async with self._channels.open(request.holder, sharer_of(context)) as (channel_id, events):
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
        requests.check_given_channel(request.channel_id, "a handover is of a channel")
        brokers = self._manager.hand_over_channel(request.channel_id)
        return pb.HandOverChannelResponse(
            header=self._manager.header(),
            channel_grace_millis=round(self._manager.behaviour.channel_grace_seconds * 1000),
            broker_count=brokers,
        )

    def _may_repeat(self, context: Context, identity: requests.BrokerIdentity, kind: Kind, after_header: bytes) -> None:
        """A broker was heard of; as long as its row is the same, so is the answer, but for the header."""
        manager, tally, live = self._manager, self._tally, self._manager.row_of(*identity)

        def again() -> bytes | None:
            if live is None or not manager.heard_again(live):
                return None
            tally.count(kind, "unchanged")
            return manager.header_fragment() + after_header

        may_repeat(context, again)

    def _order_topic_config(self) -> Mapping[str, str]:
        wanted = self._manager.behaviour.return_order_topic_config_to_broker
        return self._manager.kv_config.entries(ORDER_TOPIC_CONFIG) if wanted else {}


def _result(*, changed: bool) -> Result:
    return "changed" if changed else "unchanged"


@lru_cache(requests.KNOWN_IDENTITIES)
def _after_header(held: DataVersion | None, *, changed: bool) -> bytes:
    """A QueryDataVersionResponse without its header. Each broker gets the same again and again."""
    if held is None:
        return pb.QueryDataVersionResponse(changed=changed).SerializeToString()
    version = route_data_pb2.DataVersion(
        timestamp_millis=held.timestamp_millis, counter=held.counter, state_version=held.state_version
    )
    return pb.QueryDataVersionResponse(changed=changed, data_version=version).SerializeToString()
