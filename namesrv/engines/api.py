"""What the name server needs of any engine: options, cacheable answers, repeated calls and shared writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, cast

from groundwork.shares import ShareRules
from namesrv.core.model import BrokerKey
from namesrv.core.state import RouteState
from namesrv.limits import MAX_MESSAGE_BYTES, MAX_REGISTRATION_BYTES

KEEPALIVE_TIMEOUT_SECONDS = 5.0
"""Time for the answer to a ping. Without an answer the connection is closed."""

# How large requests may be.

REGISTER_BROKER = "/namesrv_api.v1.RegistrationService/RegisterBroker"


def max_request_bytes(path: str) -> int:
    """The largest request of a call."""
    return MAX_REGISTRATION_BYTES if path == REGISTER_BROKER else MAX_MESSAGE_BYTES


# Answers that an engine may give again by itself, as the servicers see it: they name the dependencies of an answer.
#
# A dependency is a topic, a broker group, or all clusters. Engines without a cache pass over all of it.

CLUSTERS_DEPENDENCY = "\0"
"""The dependency of an answer about all clusters and groups."""

KEPT_METHODS = frozenset(
    f"/namesrv_api.v1.RouteService/{name}" for name in ("GetTopicRoute", "BatchGetTopicRoutes", "GetBrokerClusterInfo")
)
"""Calls whose answers may be kept."""


def serve_from(server: object, state: RouteState) -> None:
    """Has a server keep answers of these tables, if it can."""
    if hasattr(server, "keep_answers_of"):
        server.keep_answers_of(state)


def forget_answers(server: object) -> None:
    """Has a server forget the answers that it keeps, if it can."""
    if hasattr(server, "forget_answers"):
        server.forget_answers()


def may_keep(context: object, dependencies: Callable[[], Sequence[str]]) -> None:
    """Names the dependencies of the answer, if the engine keeps answers. The answer must be given in this very step."""
    if hasattr(context, "may_keep"):
        context.may_keep(dependencies())


def route_dependencies(state: RouteState, topic: str) -> list[str]:
    """The dependencies of a topic's route: the topic, and the groups that have queues of it."""
    groups = (queue_data.broker for queue_data in state.tables.queue_datas_of(topic))
    return [topic, *map(group_dependency, groups)]


def group_dependency(broker: BrokerKey) -> str:
    """The dependency of a group; no topic begins so."""
    return f"\0{broker.cluster_name}\0{broker.broker_name}"


# Calls that come again and again, byte for byte, from the same caller, as the servicers see them.
#
# An engine that knows such a call asks for its answer again, without a parse, a context and the checks that only look
# at the bytes and at who sent them. Whatever can have changed since is looked at anew. Other engines pass over all of
# it.

Again = Callable[[], bytes | None]
"""Does all that the call asks for once more, and counts it, and returns the answer. None, with nothing done: the call
has to be looked at as a whole, because it may not end well. Never waits."""


def may_repeat(context: object, again: Again) -> None:
    """Says how the call that is answered well in this very step is answered when it comes again."""
    if hasattr(context, "may_repeat"):
        context.may_repeat(again)


# Streams that an engine can send the same message to, many at once, as those see it who tell them of changes.
#
# A stream's own task sends what it makes for this stream alone, and waits for a reader who is slow. Engines without
# such streams have each task woken instead.


class SharedWriter(Protocol):
    """The context of such a stream."""

    @property
    def is_free(self) -> bool:
        """Whether the client has taken the last message, so that another one can leave at once."""

    def write_to_all(self, streams: Sequence[Self], message: bytes) -> None:
        """Sends a message to free streams of the same server, without their tasks."""


def shared_writer(context: object) -> SharedWriter | None:
    """The context of a stream, if its engine can send the same message to many at once."""
    return cast("SharedWriter", context) if hasattr(context, "write_to_all") else None


# The end of an engine.

LISTENER_SECONDS = 5.0
"""How long the stop of an engine may take beyond the time that calls get."""


class EngineFailed(Exception):
    """The engine stopped by itself, or a part of it did. The text is the cause."""


async def watch_engine(server: object) -> None:
    """Raises EngineFailed when the engine of a started server fails. Returns at once for engines that cannot."""
    if hasattr(server, "until_failed"):
        await server.until_failed()


# How the native engine is to be.


@dataclass(frozen=True, slots=True)
class Options:
    """How the engine is to be; see ``engine/src/limits.rs`` for what each bound prevents."""

    threads: int
    permits: bool
    cache_bytes: int
    max_metadata: int
    max_streams: int
    max_connections: int
    max_calls: int
    max_health_calls: int
    max_reflection_calls: int
    max_bytes_in: int
    max_waiting: int
    shares: ShareRules
    max_connection_rate: int
    keepalive: float
    keepalive_timeout: float
    handshake_timeout: float = 10.0
    body_timeout: float = 20.0
    linger: float = 5.0

    @property
    def max_cancels(self) -> int:
        """Two full sets of calls may be cancelled within a keepalive time."""
        return 2 * self.max_streams
