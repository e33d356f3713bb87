"""One name server as the client needs it: its health, lookups, watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1 import route_service_pb2_grpc

from namesrv_common.client.channels import ClientSecurity, ConnectionSettings, open_aio_channel
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError
from route_client.cache import Answer, Origin
from route_client.settings import ClientSettings

AnswerT = TypeVar("AnswerT")

_ROUTES = pb.DESCRIPTOR.services_by_name["RouteService"]
KEEPALIVE_SECONDS = 5.0
"""Silence after which a name server is pinged, and time for its answer. A name server that hangs is left after 10 s.
Name servers permit a ping every second."""
BATCH_TOPICS = 500
"""Most topics of one lookup; a name server takes 1,000."""
_HAS_NO_HEALTH = frozenset({grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND})


class Namesrv:
    """A connection to one name server."""

    def __init__(self, endpoint: Endpoint, settings: ClientSettings, security: ClientSecurity | None) -> None:
        """Connects at the first call. Needs a running event loop."""
        self.endpoint = endpoint
        self._timeout_seconds = settings.timeout_seconds
        connection = ConnectionSettings(
            connect_seconds=settings.timeout_seconds,
            # A name server that is back is tried again within a second, not within two minutes.
            first_backoff_seconds=0.1,
            longest_backoff_seconds=1.0,
            keepalive_seconds=KEEPALIVE_SECONDS,
            shared=False,  # with other clients of the process
        )
        self._connection = open_aio_channel(endpoint, connection.options, security)
        self._routes = route_service_pb2_grpc.RouteServiceStub(self._connection)
        self._health: Any = health_pb2_grpc.HealthStub(self._connection)

    async def is_serving(self) -> bool:
        """Whether the name server says that it is ready to answer. One without a health service always is.

        Raises:
            CallError: It does not answer.
        """
        try:
            request = health_pb2.HealthCheckRequest(service=_ROUTES.full_name)
            with _failures(self.endpoint):
                health = _readable(await self._health.Check(request, timeout=self._timeout_seconds), self.endpoint)
        except CallError as failed:
            if failed.error.code in _HAS_NO_HEALTH:
                return True
            raise
        return bool(health.status == health_pb2.HealthCheckResponse.SERVING)

    async def lookup(self, topics: Sequence[str]) -> list[Answer | ValueError]:
        """The routes of topics, in as many calls as they need, with a ValueError instead of each unreadable answer.

        A topic that the name server does not know yet has no answer.

        Raises:
            CallError: No answer, or an error.
        """
        answers: list[Answer | ValueError] = []
        pending = topics
        while pending:
            request = pb.BatchGetTopicRoutesRequest(topics=pending)
            try:
                with _failures(self.endpoint):
                    answered = await self._routes.BatchGetTopicRoutes(request, timeout=self._timeout_seconds)
                response = _readable(answered, self.endpoint)
            except CallError as failed:
                if pending is topics or failed.error.reason != "LIMIT_EXCEEDED":
                    raise
                # The routes that are left are too large for any answer.
                return [*answers, ValueError(f"the route of {pending[0]!r}: {failed.error}")]
            if len(response.topics_left_out) >= len(pending):
                raise CallError(self.endpoint, RichError(grpc.StatusCode.INTERNAL, "leaves all topics of a batch out"))
            origin, revision = Origin(response.header.namesrv_name, response.header.epoch), response.header.revision
            answers += [Answer(topic, None, origin, revision) for topic in response.topics_not_found]
            answers += [Answer.read(named.topic, named.route, origin, revision) for named in response.routes]
            pending = response.topics_left_out
        return answers

    async def watch(
        self, requests: AsyncIterator[pb.WatchTopicRoutesRequest]
    ) -> AsyncGenerator[pb.WatchTopicRoutesResponse, None]:
        """Sends the requests of a watch and yields its messages, until it is closed or cancelled.

        Raises:
            CallError: There is no next message. Pings of the connection notice a dead name server.
        """
        call = self._routes.WatchTopicRoutes(requests)
        try:
            with _failures(self.endpoint):
                async for message in call:
                    yield _readable(message, self.endpoint)
            raise CallError(self.endpoint, RichError(grpc.StatusCode.UNAVAILABLE, "ended the watch"))
        finally:
            call.cancel()

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


@contextmanager
def _failures(endpoint: Endpoint) -> Iterator[None]:
    """Makes each failure of a call a CallError."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise CallError(endpoint, RichError.of(error)) from error
    except asyncio.CancelledError:
        # gRPC reports a call that ended as CANCELLED as if the task were cancelled. Taken for that, it would end the
        # caller silently.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CallError(endpoint, RichError(grpc.StatusCode.CANCELLED, "the call was cancelled")) from None


def _readable(answer: AnswerT | None, endpoint: Endpoint) -> AnswerT:
    if answer is None:  # this is what gRPC makes of bytes that cannot be parsed
        raise CallError(endpoint, RichError(grpc.StatusCode.INTERNAL, "sent what is not a message of the contract"))
    return answer
