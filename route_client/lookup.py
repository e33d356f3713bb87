"""One route at a time, from whichever name server answers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import grpc
from namesrv_api.v1 import route_service_pb2
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from groundwork.endpoints import Endpoint, parse_endpoints
from groundwork.rich_errors import RichError

DEFAULT_TIMEOUT_SECONDS = 3.0
"""For each name server asked (RocketMQ: mqClientApiTimeout)."""

ASK_ELSEWHERE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
    }
)
"""Codes that say something about the name server and not about the topic."""


class RouteLookupError(Exception):
    """Base of the errors of a look-up."""


class TopicNotFoundError(RouteLookupError):
    """The name server that answered knows no such topic."""


class NoNamesrvAnsweredError(RouteLookupError):
    """No name server answered. The text says what each of them did instead."""

    def __init__(self, topic: str, errors: Mapping[Endpoint, RichError]) -> None:
        tried = "; ".join(f"{endpoint}: {error}" for endpoint, error in errors.items())
        super().__init__(f"no name server answered for the topic {topic!r}: {tried}")
        self.errors = dict(errors)
        """The error of each name server asked, in the order asked."""


class RouteLookup:
    """Looks routes up at one of several name servers.

    The list is shuffled once; the name server that answered last is asked first (RocketMQ: NettyRemotingClient). Use
    it in a ``with`` statement or call ``close``. Not for several threads at once.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        rng: random.Random | None = None,
    ) -> None:
        """Takes a list of name servers, such as ``"a:9876;b:9876"``.

        Raises:
            ValueError: The list is empty or an element is no address.
        """
        parsed = list(parse_endpoints(endpoints))
        (rng or random.Random()).shuffle(parsed)  # noqa: S311 - spreads load, guards nothing
        self._timeout_seconds = timeout_seconds
        self._connections = {endpoint: grpc.insecure_channel(str(endpoint)) for endpoint in parsed}
        self._order = parsed

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """The name servers, in the order they are asked."""
        return tuple(self._order)

    def route(self, topic: str) -> route_service_pb2.GetTopicRouteResponse:
        """Where a topic lives, with the name, epoch and revision of the name server that says so.

        Raises:
            TopicNotFoundError: The name server knows no such topic.
            NoNamesrvAnsweredError: None answered in time.
            RouteLookupError: The name server refused the request, as for a name that breaks the rules.
        """
        request = route_service_pb2.GetTopicRouteRequest(topic=topic)
        errors: dict[Endpoint, RichError] = {}
        for endpoint in list(self._order):
            try:
                stub = RouteServiceStub(self._connections[endpoint])
                answer = stub.GetTopicRoute(request, timeout=self._timeout_seconds)
            except grpc.RpcError as failed:
                error = RichError.of(failed)
                if error.code == grpc.StatusCode.NOT_FOUND:
                    raise TopicNotFoundError(f"{endpoint}: {error.message}") from failed
                if error.code not in ASK_ELSEWHERE:
                    raise RouteLookupError(f"{endpoint}: {error}") from failed
                errors[endpoint] = error
                self._ask_last(endpoint)
            else:
                return answer
        raise NoNamesrvAnsweredError(topic, errors)

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _ask_last(self, endpoint: Endpoint) -> None:
        self._order.remove(endpoint)
        self._order.append(endpoint)
