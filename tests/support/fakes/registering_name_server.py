"""A name server in this process: real gRPC, answers as told, remembers what it was sent."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import (
    registration_service_pb2_grpc,
    route_data_pb2,
    route_service_pb2,
    route_service_pb2_grpc,
)

from broker_agent.registration import MAX_REGISTRATION_BYTES
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError

DEADLINE = 10.0
"""Longest wait of a test for anything, seconds."""


class FakeNameServer(registration_service_pb2_grpc.RegistrationServiceServicer):
    def __init__(self, name: str = "ns", port: int = 0) -> None:
        self.name = name
        self.registrations: list[pb.RegisterBrokerRequest] = []
        self.handed_over: list[str] = []
        self.members: dict[int, str] = {}
        self.order_topic_config: dict[str, str] = {}
        self.metadata: list[dict[str, str | bytes]] = []
        self.queries: list[pb.QueryDataVersionRequest] = []
        self.unregistrations: list[pb.UnregisterBrokerRequest] = []
        self.channels_opened = 0
        self.open_channels: dict[str, queue.Queue[pb.OpenChannelResponse | None]] = {}
        self.version_held: route_data_pb2.DataVersion | None = None
        self.master_addr: str | None = None
        self.ha_server_addr: str | None = None
        self.refuse_next: list[RichError] = []
        self.hanging = False
        self.silent_channels = 0
        """Channels to come that are accepted and not opened."""
        self.held_up: list[str] = []
        self._released = threading.Event()
        self.happened = threading.Condition()
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="fake-name-server")
        self._server = grpc.server(
            self._pool, options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_REGISTRATION_BYTES)]
        )
        registration_service_pb2_grpc.add_RegistrationServiceServicer_to_server(self, self._server)
        routes: Any = _Routes  # abstract in its stubs, for the calls that it does not have
        route_service_pb2_grpc.add_RouteServiceServicer_to_server(routes(self), self._server)
        self.endpoint = Endpoint("127.0.0.1", self._server.add_insecure_port(f"127.0.0.1:{port}"))
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def hang(self) -> None:
        """Answers no call from now on, though its channels stay open."""
        self.hanging = True

    def answer_again(self) -> None:
        self.hanging = False
        self._released.set()

    def stop(self) -> None:
        self.answer_again()
        assert self._server.stop(0).wait(DEADLINE)
        self.end_channels()
        self._pool.shutdown()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.happened:
            assert self.happened.wait_for(condition, DEADLINE)

    def send(self, event: pb.OpenChannelResponse) -> None:
        for events in list(self.open_channels.values()):
            events.put(event)

    def end_channels(self) -> None:
        for events in list(self.open_channels.values()):
            events.put(None)

    def forget_channels(self) -> None:
        """Answers CHANNEL_GONE from now on for the channels that are open, although their streams go on."""
        self.open_channels.clear()

    def OpenChannel(  # noqa: N802
        self, request: pb.OpenChannelRequest, context: grpc.ServicerContext
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
            assert events.get(timeout=60) is None
            return
        yield pb.OpenChannelResponse(opened=pb.ChannelOpened(channel_id=channel_id))
        while (event := events.get(timeout=60)) is not None:
            yield event
        with self.happened:
            self.open_channels.pop(channel_id, None)
            self.happened.notify_all()

    def RegisterBroker(  # noqa: N802
        self, request: pb.RegisterBrokerRequest, context: grpc.ServicerContext
    ) -> pb.RegisterBrokerResponse:
        with self.happened:
            self.registrations.append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            self.happened.notify_all()
        self._hang_if_told()
        if self.refuse_next:
            refuse(context, self.refuse_next.pop(0))
        if request.channel_id not in self.open_channels:
            refuse(context, RichError(grpc.StatusCode.FAILED_PRECONDITION, "gone", "CHANNEL_GONE", "namesrv"))
        if request.HasField("base_version") and request.base_version != self.version_held:
            refuse(context, RichError(grpc.StatusCode.FAILED_PRECONDITION, "full", "NEED_FULL_REGISTRATION", "namesrv"))
        self.version_held = request.data_version
        self.members = {request.broker.broker_id: request.broker.broker_addr}
        return pb.RegisterBrokerResponse(
            order_topic_config=self.order_topic_config,
            header=self._header(),
            generation=len(self.registrations),
            changed=True,
            master_addr=self.master_addr,
            ha_server_addr=self.ha_server_addr,
        )

    def QueryDataVersion(  # noqa: N802
        self, request: pb.QueryDataVersionRequest, context: grpc.ServicerContext
    ) -> pb.QueryDataVersionResponse:
        with self.happened:
            self.queries.append(request)
            self.happened.notify_all()
        self._hang_if_told()
        if self.refuse_next:
            refuse(context, self.refuse_next.pop(0))
        changed = self.version_held != request.data_version
        return pb.QueryDataVersionResponse(header=self._header(), changed=changed, data_version=self.version_held)

    def UnregisterBroker(  # noqa: N802
        self, request: pb.UnregisterBrokerRequest, context: grpc.ServicerContext
    ) -> pb.UnregisterBrokerResponse:
        with self.happened:
            self.unregistrations.append(request)
            self.happened.notify_all()
        self._hang_if_told()
        if self.refuse_next:
            refuse(context, self.refuse_next.pop(0))
        return pb.UnregisterBrokerResponse(header=self._header(), removed=True)

    def BrokerHeartbeat(  # noqa: N802
        self, request: pb.BrokerHeartbeatRequest, context: grpc.ServicerContext
    ) -> NoReturn:
        raise NotImplementedError

    def RegisterTopic(  # noqa: N802
        self, request: pb.RegisterTopicRequest, context: grpc.ServicerContext
    ) -> NoReturn:
        raise NotImplementedError

    def HandOverChannel(  # noqa: N802
        self, request: pb.HandOverChannelRequest, context: grpc.ServicerContext
    ) -> pb.HandOverChannelResponse:
        with self.happened:
            self.handed_over.append(request.channel_id)
            self.happened.notify_all()
        return pb.HandOverChannelResponse(header=self._header(), channel_grace_millis=30_000, broker_count=1)

    def _hang_if_told(self) -> None:
        if self.hanging:
            with self.happened:
                self.held_up.append(self.name)
                self.happened.notify_all()
            assert self._released.wait(60)

    def _header(self) -> route_data_pb2.NamesrvHeader:
        return route_data_pb2.NamesrvHeader(namesrv_name=self.name, epoch="1", revision=1)


class _Routes(route_service_pb2_grpc.RouteServiceServicer):
    def __init__(self, server: FakeNameServer) -> None:
        self._server = server

    def GetBrokerMemberGroup(  # noqa: N802
        self, request: route_service_pb2.GetBrokerMemberGroupRequest, context: grpc.ServicerContext
    ) -> route_service_pb2.GetBrokerMemberGroupResponse:
        self._server._hang_if_told()
        addrs = [route_data_pb2.BrokerAddr(broker_id=i, broker_addr=a) for i, a in self._server.members.items()]
        group = route_data_pb2.BrokerData(broker_addrs=addrs)
        return route_service_pb2.GetBrokerMemberGroupResponse(header=self._server._header(), broker_data=group)


def refuse(context: grpc.ServicerContext, error: RichError) -> NoReturn:
    context.abort_with_status(error.status())
    raise AssertionError
