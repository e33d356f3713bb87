"""A name server that clients look topics up in and watch: no tables, only routes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.grpc_errors import RichError
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv, refuse
from tests.support.patience import TIMEOUT

Refusal = tuple[grpc.StatusCode, str, float | None]
EXPIRED: Refusal = (grpc.StatusCode.UNAVAILABLE, "WATCH_EXPIRED", 0.0)


def abort(context: grpc.ServicerContext, code: grpc.StatusCode, reason: str, retry_after: float | None = None) -> None:
    """Ends a call with a rich error."""
    refuse(context, RichError(code, f"the fake says {reason}", reason, "namesrv", retry_after_seconds=retry_after))


@dataclass
class _Watch:
    """An open watch."""

    sent: dict[str, int]
    """Its topics, each with the revision that it was sent at, or -1 before that."""
    request_count: int = 1
    refusal: Refusal | None = None
    """What is wrong with its last request."""


class FakeNameServer(ScriptedNamesrv):
    """Answers lookups and watches from the routes it is given."""

    def __init__(self, name: str = "ns-a", *, garbles: bool = False) -> None:
        super().__init__(name)
        self.garbles = garbles
        """Whether it sends bytes that are no messages."""
        self._told: dict[str, tuple[route_data_pb2.TopicRouteData | None, int]] = {}
        """The route of each topic, and the revision that changed it."""
        self.lookups: list[list[str]] = []
        self.most_topics = 1_000
        """Topics that one answer to a lookup has. The others are left out."""
        self.too_large: str | None = None
        """A topic whose route no answer can have."""
        self.hold_lookups: threading.Event | None = None
        """Lookups wait for it."""
        self.watch_requests: list[pb.WatchTopicRoutesRequest] = []
        """The first request of each watch."""
        self.watch_updates: list[pb.WatchTopicRoutesRequest] = []
        """The later requests of all watches."""
        self.refusals: list[Refusal] = []
        """Errors for the next watches, one each."""
        self.update_refusals: list[Refusal] = []
        """Errors for the next later requests of watches, one each."""
        self.spoil: Callable[[Message], Message] | None = None
        """Changes each message of a watch before it is sent."""
        self.open_watches = 0
        self._cut = 0

    def stop(self) -> None:
        self.cut_watches()
        super().stop()

    def put(self, topic: str, route: route_data_pb2.TopicRouteData | None) -> None:
        """Changes a topic's route."""
        with self.happened:
            self.revision += 1
            self._told[topic] = (route, self.revision)
            self.happened.notify_all()

    def cut_watches(self) -> None:
        """Ends all watches, as a connection that breaks does."""
        with self.happened:
            self._cut += 1
            self.happened.notify_all()

    # What a client calls

    def BatchGetTopicRoutes(  # noqa: N802
        self, request: pb.BatchGetTopicRoutesRequest, context: grpc.ServicerContext
    ) -> pb.BatchGetTopicRoutesResponse:
        self.lookups.append(list(request.topics))
        if self.hold_lookups is not None:
            self.hold_lookups.wait(TIMEOUT)
        with self.happened:
            answered, left_out = request.topics[: self.most_topics], request.topics[self.most_topics :]
            if self.too_large in answered:
                abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
            answer = pb.BatchGetTopicRoutesResponse(header=self.header(), topics_left_out=left_out)
            for topic in answered:
                route, _ = self._told.get(topic, (None, 0))
                if route is None:
                    answer.topics_not_found.append(topic)
                else:
                    answer.routes.add(topic=topic, route=route)
            return answer

    def WatchTopicRoutes(  # noqa: N802
        self, requests: Iterator[pb.WatchTopicRoutesRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.WatchTopicRoutesResponse]:
        request = next(requests)
        self.watch_requests.append(request)
        if not request.topics:
            abort(context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        if self.refusals:
            abort(context, *self.refusals.pop(0))
        sent = -1
        if request.HasField("resume_after"):
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
                with self.happened:
                    self.watch_updates.append(request)
                    watch.refusal = self.update_refusals.pop(0) if self.update_refusals else None
                    for topic in request.removed_topics:
                        watch.sent.pop(topic, None)
                    for topic in request.topics:
                        watch.sent.setdefault(topic, -1)
                    watch.request_count += 1
                    self.happened.notify_all()

    def _messages(self, watch: _Watch, context: grpc.ServicerContext) -> Iterator[pb.WatchTopicRoutesResponse]:
        cut, told = self._cut, (-1, 0)  # the first message comes at once, also if nothing has changed
        while True:
            with self.happened:
                while told == (self.revision, watch.request_count) and self._cut == cut and context.is_active():
                    self.happened.wait(3 * TIMEOUT)
                if self._cut > cut or not context.is_active():
                    return
                if watch.refusal is not None:
                    abort(context, *watch.refusal)
                answer = pb.WatchTopicRoutesResponse(
                    header=self.header(), bookmark=True, request_count=watch.request_count
                )
                for topic, sent in watch.sent.items():
                    route, revision = self._told.get(topic, (None, 0))
                    if revision > sent:
                        answer.changes.add(topic=topic, route=route)
                    watch.sent[topic] = self.revision
                told = (self.revision, watch.request_count)
            yield self.spoil(answer) if self.spoil else answer  # type: ignore[misc]

    def encoded(self, answer: Message | bytes) -> bytes:
        return b"\xff is no message" if self.garbles else super().encoded(answer)

    def _wake(self) -> None:
        with self.happened:
            self.happened.notify_all()
