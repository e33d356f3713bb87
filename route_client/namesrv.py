"""Name servers as the client needs them: health, lookups that fail over to the next one, and watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1 import route_service_pb2_grpc

from namesrv_common.client.channels import ClientSecurity, ConnectionSettings, open_aio_channel
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import ELSEWHERE, CallError, RichError
from route_client.cache import Answer, Origin
from route_client.endpoints import EndpointChooser
from route_client.errors import ClientClosedError, NoNamesrvAnsweredError, RequestRefusedError, RouteClientError
from route_client.kept_routes import KeptRoutes
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
        await cancelled(self._closing)
        await asyncio.gather(*(namesrv.close() for namesrv in self._open.values()), return_exceptions=True)
        self._open.clear()


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks, and waits for their ends."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


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


# Lookups of topics that the cache does not know: gathered into batches, failing over from name server to the next.

PATIENCE_SECONDS = 1.0
"""Silence of a name server after which the next one is asked as well."""

ASK_ELSEWHERE = ELSEWHERE | {grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Codes that say something about the name server and not about the topic. UNIMPLEMENTED: another service."""


class Lookups:
    """Asks for topics, each at most once at a time."""

    def __init__(self, namesrvs: Namesrvs, chooser: EndpointChooser, routes: KeptRoutes) -> None:
        """Asks nobody yet. The routes get all answers."""
        self._namesrvs = namesrvs
        self._chooser = chooser
        self._routes = routes
        self._under_way: dict[str, asyncio.Future[None]] = {}
        self._gathered: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def lookup(self, topics: Iterable[str]) -> None:
        """Returns once answers for all topics have been taken.

        Raises:
            NoNamesrvAnsweredError: No name server answered for one of them.
            RequestRefusedError: A name server refused to be asked.
        """
        waiting = [self._ask_for(topic) for topic in topics]
        for outcome in await asyncio.gather(*map(asyncio.shield, waiting), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def wait(self) -> None:
        """Waits for the lookups that are under way, but not for silent name servers."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=PATIENCE_SECONDS)

    async def close(self) -> None:
        """Gives up what is under way."""
        await cancelled(self._tasks)

    def _ask_for(self, topic: str) -> asyncio.Future[None]:
        if topic not in self._under_way:
            self._under_way[topic] = asyncio.get_running_loop().create_future()
            self._gathered.append(topic)
            if len(self._gathered) == 1:
                task = asyncio.create_task(self._ask_for_gathered(), name="route-client-lookup")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return self._under_way[topic]

    async def _ask_for_gathered(self) -> None:
        # All lookups of one iteration of the event loop are in the same batch.
        topics, self._gathered = self._gathered, []
        try:
            for start in range(0, len(topics), BATCH_TOPICS):
                await self._ask_in_turn(topics[start : start + BATCH_TOPICS])
        except asyncio.CancelledError:
            self._settle(topics, ClientClosedError("the client was closed meanwhile"))
            raise
        except Exception as defect:
            self._settle(topics, RouteClientError(f"a defect of the client: {defect!r}"))
            raise

    async def _ask_in_turn(self, topics: list[str]) -> None:
        """Asks the next name server where one fails, has no answer for a topic, or is silent for too long."""
        errors: dict[Endpoint, RichError] = {}
        to_ask = self._chooser.in_order()
        asked: dict[asyncio.Task[list[Answer | ValueError]], Endpoint] = {}
        try:
            while to_ask or asked:
                if to_ask:
                    endpoint = to_ask.pop(0)
                    asked[asyncio.create_task(self._namesrvs.at(endpoint).lookup(topics))] = endpoint
                patience = PATIENCE_SECONDS if to_ask else None
                answered, silent = await asyncio.wait(asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for call in () if answered else silent:
                    self._chooser.doubt(asked[call])
                for call in answered:
                    endpoint = asked.pop(call)
                    try:
                        errors[endpoint] = self._take(endpoint, await call)
                    except CallError as failed:
                        if failed.error.code not in ASK_ELSEWHERE:
                            self._settle(topics, RequestRefusedError(endpoint, failed.error))
                            return
                        errors[endpoint] = failed.error
                        self._chooser.doubt(endpoint)
                topics = [topic for topic in topics if topic in self._under_way]
                if not topics:
                    return
        finally:
            await cancelled(asked)
        for topic in topics:
            self._settle([topic], NoNamesrvAnsweredError(f"topic {topic!r}", errors))

    def _take(self, endpoint: Endpoint, answers: list[Answer | ValueError]) -> RichError:
        """Hands the answers on. Returns why the other topics of the batch have none."""
        problems: list[ValueError] = []
        taken: list[Answer] = []
        for answer in answers:
            if (problem := self._routes.take(answer)) is not None:
                problems.append(problem)
            elif isinstance(answer, Answer):
                taken.append(answer)
        if taken:  # the first one has the lowest revision
            names = [answer.topic for answer in taken]
            self._routes.topics.looked_up(endpoint, taken[0].origin, taken[0].revision, names)
        self._settle(answer.topic for answer in taken)
        if problems:
            return RichError(grpc.StatusCode.INTERNAL, f"answered with what the client does not take: {problems[0]}")
        return RichError(grpc.StatusCode.UNAVAILABLE, "does not know the topic yet", reason="REGISTRY_WARMING")

    def _settle(self, topics: Iterable[str], error: RouteClientError | None = None) -> None:
        for topic in topics:
            future = self._under_way.pop(topic, None)
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()  # the callers may have been cancelled; asyncio would log that nobody retrieved it
