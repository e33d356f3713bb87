"""One name server over gRPC: its health, lookups, watches. Every call has a deadline; every error says what it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from groundwork.connections.channels import ClientSecurity, open_aio_channel
from groundwork.endpoints import Endpoint
from groundwork.rich_errors import RichError
from route_client.routes.cache import Answer, Origin
from route_client.routes.route import from_wire
from route_client.settings import ClientSettings

AnswerT = TypeVar("AnswerT")

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Largest answer: a full batch of routes has 4 MiB, the names beside it less."""

_ROUTE_SERVICE = pb.DESCRIPTOR.services_by_name["RouteService"].full_name
_HAS_NO_HEALTH = frozenset({grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND})


class CallFailed(Exception):
    """A name server answered with an error, or not at all."""

    def __init__(self, endpoint: Endpoint, error: RichError) -> None:
        super().__init__(f"{endpoint}: {error}")
        self.endpoint = endpoint
        self.error = error


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """What a name server says about several topics."""

    answers: tuple[Answer, ...]
    """Routes, and topics that are not there."""
    warming: tuple[str, ...]
    """Topics that it does not know yet."""
    refused: tuple[ValueError, ...]
    """Routes that could not be read."""

    def __add__(self, other: BatchAnswer) -> BatchAnswer:
        return BatchAnswer(self.answers + other.answers, self.warming + other.warming, self.refused + other.refused)


class Namesrv:
    """A connection to one name server."""

    def __init__(self, endpoint: Endpoint, settings: ClientSettings, security: ClientSecurity | None) -> None:
        """Connects at the first call. Needs a running event loop."""
        self.endpoint = endpoint
        self._timeout = settings.timeout_seconds
        self._connection = open_aio_channel(endpoint, _options(settings), security)
        self._stub = RouteServiceStub(self._connection)
        self._health = health_pb2_grpc.HealthStub(self._connection)

    async def is_serving(self) -> bool:
        """Whether the name server says that it is ready to answer. One without a health service always is.

        Raises:
            CallFailed: It does not answer.
        """
        try:
            request = health_pb2.HealthCheckRequest(service=_ROUTE_SERVICE)
            health = await self._answer(self._health.Check(request, timeout=self._timeout))
        except CallFailed as failed:
            if failed.error.code in _HAS_NO_HEALTH:
                return True
            raise
        return bool(health.status == health_pb2.HealthCheckResponse.SERVING)

    async def lookup(self, topics: Sequence[str]) -> BatchAnswer:
        """The routes of topics. If they are too large for one answer, in halves.

        Raises:
            CallFailed: No answer, or an error.
        """
        try:
            request = pb.BatchGetTopicRoutesRequest(topics=topics)
            response = await self._answer(self._stub.BatchGetTopicRoutes(request, timeout=self._timeout))
        except CallFailed as failed:
            if failed.error.reason != "LIMIT_EXCEEDED" or len(topics) < 2:
                raise
            half = len(topics) // 2
            return await self.lookup(topics[:half]) + await self.lookup(topics[half:])
        return _batch_answer(response)

    def watch(
        self, request: pb.WatchTopicRoutesRequest
    ) -> grpc.aio.UnaryStreamCall[pb.WatchTopicRoutesRequest, pb.WatchTopicRoutesResponse]:
        """Opens a watch. Without a deadline: the connection's pings notice a name server that is gone."""
        return self._stub.WatchTopicRoutes(request)

    async def next_of(self, responses: AsyncIterator[AnswerT]) -> AnswerT:
        """The next message of a watch.

        Raises:
            CallFailed: There is none.
        """
        try:
            return await self._answer(anext(responses))
        except StopAsyncIteration:
            raise self._failure(grpc.StatusCode.UNAVAILABLE, "ended the watch") from None

    async def _answer(self, call: Awaitable[AnswerT]) -> AnswerT:
        """The answer to a call.

        Raises:
            CallFailed: It ended otherwise.
        """
        try:
            answer = await call
        except grpc.aio.AioRpcError as failed:
            raise CallFailed(self.endpoint, RichError.of(failed)) from failed
        except asyncio.CancelledError:
            # gRPC reports a call that ended as CANCELLED as if the task were cancelled. Taken for that, it would end
            # whoever keeps the routes up to date, for ever and without a word.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._failure(grpc.StatusCode.CANCELLED, "the call was cancelled") from None
        if answer is None:  # this is what gRPC makes of bytes that cannot be parsed
            raise self._failure(grpc.StatusCode.INTERNAL, "sent what is not a message of the contract")
        return answer

    def _failure(self, code: grpc.StatusCode, message: str) -> CallFailed:
        return CallFailed(self.endpoint, RichError(code, message))

    async def close(self, grace_seconds: float | None = None) -> None:
        """Ends the connection, after its calls or after a time at most."""
        await self._connection.close(grace_seconds)


class Namesrvs:
    """Connections to name servers, made when they are needed and dropped when they fail."""

    def __init__(self, settings: ClientSettings) -> None:
        """Raises CertificateError if the files of the settings cannot be used."""
        self._settings = settings
        self._security = None if settings.tls is None else ClientSecurity(settings.tls)
        self._open: dict[Endpoint, Namesrv] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def at(self, endpoint: Endpoint) -> Namesrv:
        """The connection to a name server."""
        if endpoint not in self._open:
            self._open[endpoint] = Namesrv(endpoint, self._settings, self._security)
        return self._open[endpoint]

    def drop(self, endpoint: Endpoint) -> None:
        """Has the next call make a new connection at once: gRPC would wait first.

        The old one is closed once lookups that are under way have got their answer or their error.
        """
        namesrv = self._open.pop(endpoint, None)
        if namesrv is not None:
            closing = asyncio.create_task(namesrv.close(self._settings.timeout_seconds), name="route-client-drop")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes all connections."""
        closing = list(self._closing)
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, *(namesrv.close() for namesrv in self._open.values()), return_exceptions=True)
        self._open.clear()


def _batch_answer(response: pb.BatchGetTopicRoutesResponse) -> BatchAnswer:
    origin = Origin(response.header.namesrv_name, response.header.epoch)
    revision = response.header.revision
    answers = [Answer(topic, None, origin, revision) for topic in response.topics_not_found]
    refused = []
    for named in response.routes:
        try:
            answers.append(Answer(named.topic, from_wire(named.route), origin, revision))
        except ValueError as error:
            refused.append(ValueError(f"the route of topic {named.topic!r}: {error}"))
    return BatchAnswer(tuple(answers), tuple(response.topics_warming), tuple(refused))


def _options(settings: ClientSettings) -> list[tuple[str, int]]:
    keepalive_millis = int(settings.keepalive_seconds * 1000)
    return [
        ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
        ("grpc.enable_retries", 0),  # the next name server is the retry
        # Otherwise all clients of a process would share one connection, and its flow control and backoff.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", keepalive_millis),
        ("grpc.keepalive_timeout_ms", keepalive_millis),
        # Without it gRPC takes 60 s more to notice a dead peer, whatever the keepalive timeout.
        ("grpc.http2.ping_timeout_ms", keepalive_millis),
        ("grpc.http2.max_pings_without_data", 0),
        # This one is, in spite of its name, the time that one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", int(settings.timeout_seconds * 1000)),
        # A name server that is back is tried again within a second, not within two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
    ]
