"""A name server that agents register with: it answers as told and remembers what it was sent."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import grpc
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv_common.grpc_errors import RichError
from tests.support.fakes.scripted_namesrv import HANG_SECONDS, ScriptedNamesrv, refuse


class FakeNameServer(ScriptedNamesrv):
    """Opens channels, and holds the version and the address of one broker."""

    def __init__(self, name: str = "ns", port: int = 0) -> None:
        super().__init__(name, port)
        self.registrations: list[pb.RegisterBrokerRequest] = self.asked["RegisterBroker"]
        self.queries: list[pb.QueryDataVersionRequest] = self.asked["QueryDataVersion"]
        self.unregistrations: list[pb.UnregisterBrokerRequest] = self.asked["UnregisterBroker"]
        self.members: dict[int, str] = {}
        self.order_topic_config: dict[str, str] = {}
        self.channels_opened = 0
        self.open_channels: dict[str, queue.Queue[pb.OpenChannelResponse | None]] = {}
        self.version_held: route_data_pb2.DataVersion | None = None
        self.master_addr: str | None = None
        self.ha_server_addr: str | None = None
        self.silent_channels = 0
        """Channels to come that are accepted and not opened."""

    def send(self, event: pb.OpenChannelResponse) -> None:
        for events in list(self.open_channels.values()):
            events.put(event)

    def end_channels(self) -> None:
        for events in list(self.open_channels.values()):
            events.put(None)

    def forget_channels(self) -> None:
        """Answers CHANNEL_GONE from now on for the channels that are open, although their streams continue."""
        self.open_channels.clear()

    def OpenChannel(  # noqa: N802
        self, _request: pb.OpenChannelRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.OpenChannelResponse]:
        events: queue.Queue[pb.OpenChannelResponse | None] = queue.Queue()
        with self.happened:
            self.channels_opened += 1
            channel_id = f"{self.name}-{self.channels_opened}"
            self.open_channels[channel_id] = events
            self.happened.notify_all()
        context.add_callback(lambda: events.put(None))
        if self.silent_channels:
            self.silent_channels -= 1
            assert events.get(timeout=HANG_SECONDS) is None
            return
        yield pb.OpenChannelResponse(opened=pb.ChannelOpened(channel_id=channel_id))
        while (event := events.get(timeout=HANG_SECONDS)) is not None:
            yield event
        with self.happened:
            self.open_channels.pop(channel_id, None)
            self.happened.notify_all()

    def RegisterBroker(  # noqa: N802
        self, request: pb.RegisterBrokerRequest, context: grpc.ServicerContext
    ) -> pb.RegisterBrokerResponse:
        if request.channel_id not in self.open_channels:
            refuse(context, RichError(grpc.StatusCode.FAILED_PRECONDITION, "gone", "CHANNEL_GONE", "namesrv"))
        if request.HasField("base_version") and request.base_version != self.version_held:
            refuse(context, RichError(grpc.StatusCode.FAILED_PRECONDITION, "full", "NEED_FULL_REGISTRATION", "namesrv"))
        self.version_held = request.data_version
        self.members = {request.broker.broker_id: request.broker.broker_addr}
        return pb.RegisterBrokerResponse(
            order_topic_config=self.order_topic_config,
            header=self.header(),
            generation=len(self.registrations),
            changed=True,
            master_addr=self.master_addr,
            ha_server_addr=self.ha_server_addr,
        )

    def QueryDataVersion(self, request: pb.QueryDataVersionRequest, _: object) -> pb.QueryDataVersionResponse:  # noqa: N802
        changed = self.version_held != request.data_version
        return pb.QueryDataVersionResponse(header=self.header(), changed=changed, data_version=self.version_held)

    def UnregisterBroker(self, *_: object) -> pb.UnregisterBrokerResponse:  # noqa: N802
        return pb.UnregisterBrokerResponse(header=self.header(), removed=True)

    def HandOverChannel(self, *_: object) -> pb.HandOverChannelResponse:  # noqa: N802
        return pb.HandOverChannelResponse(header=self.header(), channel_grace_millis=30_000, broker_count=1)

    def GetBrokerMemberGroup(self, *_: object) -> route_service_pb2.GetBrokerMemberGroupResponse:  # noqa: N802
        addrs = [route_data_pb2.BrokerAddr(broker_id=number, broker_addr=addr) for number, addr in self.members.items()]
        group = route_data_pb2.BrokerData(broker_addrs=addrs)
        return route_service_pb2.GetBrokerMemberGroupResponse(header=self.header(), broker_data=group)
