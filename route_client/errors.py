"""All errors of the client library: one tree."""

from __future__ import annotations

from collections.abc import Mapping

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError


class RouteClientError(Exception):
    """Base of all errors of the client library."""


class EndpointListError(RouteClientError, ValueError):
    """The list of name servers is empty, or an element is no address."""


class BadTopicNameError(RouteClientError, ValueError):
    """A topic's name breaks RocketMQ's rule for names."""


class AllocationError(RouteClientError, ValueError):
    """An allocation strategy was given an empty client id, no queues or no clients (upstream: illegal argument)."""


class MalformedOrderConfError(RouteClientError):
    """A route's ordered configuration is not ``name:queues;...``; the text names the piece and the rule."""


class NoWritableQueueError(RouteClientError):
    """The topic has a route, but no group with a master has a writable queue."""


class TooManyTopicsError(RouteClientError):
    """The client keeps ``max_topics`` topics already; forget one first."""


class ClientClosedError(RouteClientError):
    """The client is closed."""


class ForkedProcessError(RouteClientError):
    """A forked process uses a client of its parent."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"this client is of process {pid}: create the client after the fork")


class TopicNotFoundError(RouteClientError):
    """A name server that answered knows no such topic."""

    def __init__(self, topic: str, told_by: str) -> None:
        super().__init__(f"{told_by} knows no topic {topic!r}")
        self.topic = topic
        self.told_by = told_by
        """Name of the name server that said so."""


class RequestRefusedError(RouteClientError):
    """A name server refused the request itself; asking another one would not help."""

    def __init__(self, endpoint: Endpoint, error: RichError) -> None:
        super().__init__(f"{endpoint}: {error}")
        self.endpoint = endpoint
        self.error = error
        """The name server's code, reason and fields."""


class NoNamesrvAnsweredError(RouteClientError):
    """No name server answered. The text says what each of them did instead."""

    def __init__(self, about: str, errors: Mapping[Endpoint, RichError]) -> None:
        tried = "; ".join(f"{endpoint}: {error}" for endpoint, error in errors.items())
        super().__init__(f"no name server answered for {about}: {tried or 'none could be tried'}")
        self.errors = dict(errors)
        """The error of each name server asked, in the order asked."""
