"""A name server of the contract's RouteService, in this process, over real gRPC on loopback: no tables, only routes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError

EXPIRED = (grpc.StatusCode.UNAVAILABLE, "WATCH_EXPIRED", 0.0)
ROUTE_SERVICE = "namesrv_api.v1.RouteService"
Removals = tuple[pb.BrokerRemoval, ...]


def abort(context: grpc.ServicerContext, code: grpc.StatusCode, reason: str, retry_after: float | None = None) -> None:
    """Ends a call with a rich error."""
    error = RichError(code, f"the fake says {reason}", reason, "namesrv", retry_after_seconds=retry_after)
    context.abort_with_status(error.status())


@dataclass
class Told:
    """A topic as it is told."""

    route: route_data_pb2.TopicRouteData | None
    revision: int
    removals: Removals = ()


@dataclass
class _Watch:
    """An open watch."""

    sent: dict[str, int]
    """Its topics, each with the revision that it was told at; -1: not yet."""
    request_count: int = 1
    refusal: tuple[grpc.StatusCode, str, float | None] | None = None
    """What is wrong with its last request."""


@dataclass
class FakeNameServer:
    """Answers lookups and watches from the routes it is given, and remembers what it was asked."""

    name: str = "ns-a"
    epoch: str = "0001-a"
    watches: bool = True
    revision: int = 1
    told: dict[str, Told] = field(default_factory=dict)
    warming: set[str] = field(default_factory=set)
    most_routes: int = 1_000
    """Routes that fit into an answer."""
    lookups: list[list[str]] = field(default_factory=list)
    watch_requests: list[pb.WatchTopicRoutesRequest] = field(default_factory=list)
    """The first request of each watch."""
    watch_updates: list[pb.WatchTopicRoutesRequest] = field(default_factory=list)
    """The later requests of all watches."""
    hold_updates: threading.Event | None = None
    """Later requests wait for it."""
    refusals: list[tuple[grpc.StatusCode, str, float | None]] = field(default_factory=list)
    """Errors for the next watches, one each."""
    update_refusals: list[tuple[grpc.StatusCode, str, float | None]] = field(default_factory=list)
    """Errors for the next later requests of watches, one each."""
    compacted: bool = False
    """Whether watches that resume are told to start again."""
    spoil: Callable[[Message], Message] | None = None
    """Changes each message of a watch before it is sent."""
    garbles: bool = False
    """Sends bytes that are no messages."""
    open_watches: int = 0
    hold_lookups: threading.Event | None = None
    """Lookups wait for it."""
    endpoint: Endpoint = field(init=False)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._cut = 0
        self._watch_end: tuple[grpc.StatusCode, str, float | None] | None = None
        self._server: grpc.Server | None = None
        self._port = 0

    # What a test does

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listens, on the same port as before if it did already."""
        pool = futures.ThreadPoolExecutor(max_workers=32, thread_name_prefix="fake-namesrv")
        self._server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers([self._handlers()])
        self.health = health.HealthServicer()
        self.health.set(ROUTE_SERVICE, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self.endpoint = Endpoint("127.0.0.1", self._port)
        self._server.start()

    def _handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The two calls that a client makes; all others answer UNIMPLEMENTED."""
        handlers = {
            "BatchGetTopicRoutes": grpc.unary_unary_rpc_method_handler(
                self.BatchGetTopicRoutes,
                pb.BatchGetTopicRoutesRequest.FromString,
                self._encoded,
            ),
            "WatchTopicRoutes": grpc.stream_stream_rpc_method_handler(
                self.WatchTopicRoutes,
                pb.WatchTopicRoutesRequest.FromString,
                self._encoded,
            ),
        }
        return grpc.method_handlers_generic_handler(ROUTE_SERVICE, handlers)

    def stop(self) -> None:
        """Ends all calls and stops listening."""
        if self._server is not None:
            self.cut_watches()
            self._server.stop(grace=None).wait(10)
            self._server = None

    def serve(self, *, ready: bool) -> None:
        """Says that it is ready, or that it is not."""
        status = health_pb2.HealthCheckResponse
        self.health.set(ROUTE_SERVICE, status.SERVING if ready else status.NOT_SERVING)

    def put(self, topic: str, route: route_data_pb2.TopicRouteData | None, removals: Removals = ()) -> None:
        """Changes a topic's route."""
        with self._changed:
            self.revision += 1
            self.told[topic] = Told(route, self.revision, removals)
            self._changed.notify_all()

    def cut_watches(self) -> None:
        """Ends all watches, as a connection that breaks does."""
        with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def expire_watches(self) -> None:
        """Ends all watches as those that have been open for long."""
        self._watch_end = EXPIRED
        self.cut_watches()

    # What a client calls

    def BatchGetTopicRoutes(  # noqa: N802
        self, request: pb.BatchGetTopicRoutesRequest, context: grpc.ServicerContext
    ) -> pb.BatchGetTopicRoutesResponse:
        self.lookups.append(list(request.topics))
        if self.hold_lookups is not None:
            self.hold_lookups.wait(30)
        with self._changed:
            answer = pb.BatchGetTopicRoutesResponse(header=self._header(self.revision))
            for topic in request.topics:
                told = self.told.get(topic)
                if topic in self.warming:
                    answer.topics_warming.append(topic)
                elif told is None or told.route is None:
                    answer.topics_not_found.append(topic)
                elif len(answer.routes) < self.most_routes:
                    answer.routes.add(topic=topic, route=told.route)
                else:
                    answer.topics_left_out.append(topic)
            return answer

    def WatchTopicRoutes(  # noqa: N802
        self, requests: Iterator[pb.WatchTopicRoutesRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.WatchTopicRoutesResponse]:
        request = next(requests)
        self.watch_requests.append(request)
        if not request.topics:
            abort(context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        if not self.watches:
            abort(context, grpc.StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED")
        if self.refusals:
            abort(context, *self.refusals.pop(0))
        sent = -1
        if request.HasField("resume_after"):
            if request.resume_after.epoch != self.epoch:
                abort(context, grpc.StatusCode.FAILED_PRECONDITION, "EPOCH_CHANGED")
            if self.compacted:
                abort(context, grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED")
            sent = request.resume_after.revision
        context.add_callback(self._wake)
        self.open_watches += 1
        try:
            watch = _Watch(dict.fromkeys(request.topics, sent))
            threading.Thread(target=self._read_updates, args=(requests, watch), name="fake-updates").start()
            yield from self._messages(watch, context)
        finally:
            self.open_watches -= 1

    def _read_updates(self, requests: Iterator[pb.WatchTopicRoutesRequest], watch: _Watch) -> None:
        with suppress(Exception):  # whatever gRPC says of the end of a call
            for request in requests:
                if self.hold_updates is not None:
                    self.hold_updates.wait(30)
                with self._changed:
                    self.watch_updates.append(request)
                    watch.refusal = self.update_refusals.pop(0) if self.update_refusals else None
                    for topic in request.removed_topics:
                        watch.sent.pop(topic, None)
                    for topic in request.topics:
                        watch.sent.setdefault(topic, -1)
                    watch.request_count += 1
                    self._changed.notify_all()

    def _messages(self, watch: _Watch, context: grpc.ServicerContext) -> Iterator[pb.WatchTopicRoutesResponse]:
        cut, told = self._cut, (-1, 0)  # the first message comes at once, also if nothing has changed
        while True:
            with self._changed:
                while told == (self.revision, watch.request_count) and self._cut == cut and context.is_active():
                    self._changed.wait(60)
                if self._cut > cut and self._watch_end is not None:
                    abort(context, *self._watch_end)
                if self._cut > cut or not context.is_active():
                    return
                if watch.refusal is not None:
                    abort(context, *watch.refusal)
                answer = pb.WatchTopicRoutesResponse(
                    header=self._header(self.revision), bookmark=True, request_count=watch.request_count
                )
                for topic, sent in watch.sent.items():
                    self._add(answer, topic, sent)
                    watch.sent[topic] = self.revision
                told = (self.revision, watch.request_count)
            yield self.spoil(answer) if self.spoil else answer  # type: ignore[misc]

    def _add(self, answer: pb.WatchTopicRoutesResponse, topic: str, sent: int) -> None:
        told = self.told.get(topic)
        if told is None and topic not in self.warming and sent < 0:
            answer.changes.add(topic=topic)
        elif told is not None and told.revision > sent:
            answer.changes.add(topic=topic, route=told.route, removals=told.removals if sent >= 0 else ())

    def _header(self, revision: int) -> route_data_pb2.NamesrvHeader:
        return route_data_pb2.NamesrvHeader(namesrv_name=self.name, epoch=self.epoch, revision=revision)

    def _encoded(self, message: Message) -> bytes:
        return b"\xff is no message" if self.garbles else message.SerializeToString()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
