"""Cluster-test mode: who is asked for topics that are unknown here (RocketMQ: ClusterTestRequestProcessor).

Only lookups of routes ask there; in RocketMQ 5 every other call ends up in the lookup as well, which is a defect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import grpc
import structlog
from google.protobuf.message import DecodeError
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.channels import open_aio_channel
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError
from namesrv import limits
from namesrv.core.errors import Refused, limit_exceeded, overloaded, product_env_unavailable, shutting_down
from namesrv.grpc_api.handlers import Context
from namesrv.settings import NamesrvSettings

CLUSTER_TEST_KEY = "namesrv-cluster-test"
"""Request metadata of a lookup on behalf of another name server. Whoever sees it answers from its own tables alone, so
that name servers which name each other as product environment do not ask in circles."""

PRODUCT_ENV_NAME = "center"
"""The environment's name in errors and logs: the default of RocketMQ's productEnvName."""

ROUTES_BETWEEN_PAUSES = 100
"""Routes that are encoded before giving way: about a millisecond if they have 36 groups each."""

_PATH = f"/{pb.DESCRIPTOR.services_by_name['RouteService'].full_name}/BatchGetTopicRoutes"

_OPTIONS = (
    ("grpc.max_receive_message_length", limits.MAX_PRODUCT_ENV_ANSWER_BYTES),
    ("grpc.enable_retries", 0),  # the next name server is the retry
    ("grpc.min_reconnect_backoff_ms", int(limits.PRODUCT_ENV_TIMEOUT_SECONDS * 1000)),
    # By default gRPC gives a name server that came back up to two minutes before it tries again.
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
)

_log = structlog.get_logger(__name__)


class ClusterTest:
    """The name servers of another environment, asked one after the other.

    They are asked in the order in which they are configured; one that fails goes to the end, because asking one that
    hangs costs its share of the time.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        monotonic: Callable[[], float],
        timeout_seconds: float = limits.PRODUCT_ENV_TIMEOUT_SECONDS,
        max_lookups: int = limits.MAX_PRODUCT_ENV_LOOKUPS,
    ) -> None:
        """Connects to nobody yet. Calls go without TLS.

        Args:
            timeout_seconds: How long a lookup may take. Each name server that is asked gets its share of what is left.
            max_lookups: Lookups at once; more are refused and not queued.
        """
        self._namesrvs = [_ProductNamesrv(endpoint) for endpoint in endpoints]
        self._monotonic = monotonic
        self._timeout_seconds = timeout_seconds
        self._max_lookups = max_lookups
        self._lookups = 0
        self._closed = False

    @classmethod
    def of(cls, settings: NamesrvSettings, monotonic: Callable[[], float]) -> ClusterTest | None:
        """What the settings say; None if lookups stay here."""
        endpoints = settings.product_env_endpoints
        return cls(endpoints, monotonic) if endpoints else None

    async def route(self, topic: str, zone_name: str | None) -> bytes | None:
        """The encoded TopicRouteData of a topic; None if the environment has no such topic."""
        return (await self.routes((topic,), zone_name))[topic]

    async def routes(self, topics: Sequence[str], zone_name: str | None) -> dict[str, bytes | None]:
        """The encoded TopicRouteData of many topics, each of which keeps the rules for names.

        Returns:
            The routes by topic, None for topics that the environment does not have. Left out are topics about which no
            name server could tell (they are not warm); at least one topic is there.

        Raises:
            PRODUCT_ENV_UNAVAILABLE: No name server could tell about any of the topics.
            LIMIT_EXCEEDED: The routes are over the limits of an answer.
            OVERLOADED: Too many lookups are under way.
            SHUTTING_DOWN: This has been closed.
        """
        if self._lookups >= self._max_lookups:
            raise overloaded(f"{self._lookups} lookups wait for the product environment {PRODUCT_ENV_NAME!r} already")
        self._lookups += 1
        try:
            return await self._ask_in_turn(topics, zone_name)
        finally:
            self._lookups -= 1

    async def close(self) -> None:
        """Closes all connections, and with them whatever waits for an answer."""
        self._closed = True
        for namesrv in self._namesrvs:
            await namesrv.close()

    async def _ask_in_turn(self, topics: Sequence[str], zone_name: str | None) -> dict[str, bytes | None]:
        told: dict[str, bytes | None] = {}
        problems: list[str] = []
        pending = list(topics)
        for namesrv, seconds in self._turns():
            request = pb.BatchGetTopicRoutesRequest(topics=pending, zone_name=zone_name)
            try:
                answer = await namesrv.ask(request, seconds)
            except asyncio.CancelledError:
                # Or callers that wait for less than a share would never get to the next one.
                self._note_failure(namesrv, _NoAnswer("CANCELLED", "the caller waited no longer"))
                raise
            except _NoAnswer as failure:
                self._note_failure(namesrv, failure)
                problems.append(f"{namesrv.endpoint}: {failure}")
                continue
            self._note_answer(namesrv)
            answers = await _told_by(answer)
            told |= {topic: answers[topic] for topic in pending if topic in answers}
            pending = [topic for topic in pending if topic not in told]
            if not pending:
                break
            problems.append(f"{namesrv.endpoint}: is not warm")
        if not told:
            raise product_env_unavailable(PRODUCT_ENV_NAME, problems)
        return told

    def _turns(self) -> Iterator[tuple[_ProductNamesrv, float]]:
        """Whom to ask next, and for how many seconds."""
        deadline = self._monotonic() + self._timeout_seconds
        for asked, namesrv in enumerate(tuple(self._namesrvs)):
            if self._closed:
                raise shutting_down()
            yield namesrv, (deadline - self._monotonic()) / (len(self._namesrvs) - asked)

    def _note_failure(self, namesrv: _ProductNamesrv, failure: _NoAnswer) -> None:
        if not namesrv.fails:  # otherwise the log has it
            _log.warning("product_env_namesrv_failed", namesrv=str(namesrv.endpoint), problem=failure.details)
        namesrv.fails = True
        self._namesrvs.remove(namesrv)
        self._namesrvs.append(namesrv)

    def _note_answer(self, namesrv: _ProductNamesrv) -> None:
        if namesrv.fails:
            _log.info("product_env_namesrv_answers_again", namesrv=str(namesrv.endpoint))
        namesrv.fails = False


class _NoAnswer(Exception):
    """A name server did not answer the question; the next one is asked. The text is short and names no secrets."""

    def __init__(self, text: str, details: str) -> None:
        super().__init__(text)
        self.details = details
        """All that is known, for the log."""


class _ProductNamesrv:
    """One name server of the environment. Connects when it is first asked, and keeps the connection."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.fails = False
        """Whether its last call failed."""
        self._connection: grpc.aio.Channel | None = None

    async def ask(self, request: pb.BatchGetTopicRoutesRequest, seconds: float) -> pb.BatchGetTopicRoutesResponse:
        """Asks and waits so long at most.

        Raises:
            LIMIT_EXCEEDED: The routes are over the limits of an answer there, as they would be here.
            _NoAnswer: It did anything else than answer.
        """
        if self._connection is None:
            self._connection = open_aio_channel(self.endpoint, _OPTIONS, None)
        call = self._connection.unary_unary(_PATH, pb.BatchGetTopicRoutesRequest.SerializeToString, None)
        try:
            answer = await call(request, timeout=max(0.0, seconds), metadata=((CLUSTER_TEST_KEY, "1"),))
            # Parsed here and not by gRPC, which would take bytes that are no such message for no answer at all.
            return pb.BatchGetTopicRoutesResponse.FromString(answer)
        except grpc.aio.AioRpcError as error:
            rich = RichError.of(error)
            raise _limit_exceeded(rich) or _NoAnswer(f"{rich.code.name} {rich.reason}".rstrip(), str(rich)) from None
        except DecodeError as error:
            raise _NoAnswer("is no name server", str(error)) from None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close(None)


def asked_by_cluster_test(context: Context) -> bool:
    """Whether a lookup comes from a name server in cluster-test mode, so that no further one may be asked."""
    return any(key == CLUSTER_TEST_KEY for key, _ in context.invocation_metadata() or ())


async def _told_by(answer: pb.BatchGetTopicRoutesResponse) -> dict[str, bytes | None]:
    """What an answer tells about topics. Gives way now and then: it may hold megabytes."""
    told: dict[str, bytes | None] = dict.fromkeys(answer.topics_not_found)
    for count, named in enumerate(answer.routes):
        if count % ROUTES_BETWEEN_PAUSES == 0:
            await asyncio.sleep(0)
        told[named.topic] = named.route.SerializeToString()
    return told


def _limit_exceeded(error: RichError) -> Refused | None:
    """The same error as one of ours; None if it is another."""
    if error.reason != "LIMIT_EXCEEDED":
        return None
    metadata = error.metadata
    try:
        return limit_exceeded(metadata["name"], int(metadata["value"]), int(metadata["limit"]))
    except (KeyError, ValueError):
        return None
