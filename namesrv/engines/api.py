"""What the name server needs of an engine: a server, and contexts of calls that can do more than gRPC's own.

Nothing outside this package knows which engine runs. The development engine is gRPC's own server for Python, to try the
name server without the native engine.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import grpc
import structlog
from google.protobuf.message import Message

from namesrv.core.model import BrokerKey, Doubt
from namesrv.core.state import RouteState
from namesrv.limits import MAX_MESSAGE_BYTES, MAX_REGISTRATION_BYTES
from namesrv.settings import NamesrvSettings
from namesrv_common.server.rpc_handlers import Context
from namesrv_common.tls.listener_tls import CertificateCheck
from namesrv_common.version import __version__

_log = structlog.get_logger(__name__)

KEEPALIVE_TIMEOUT_SECONDS = 5.0
"""Time for the answer to a ping. Without an answer the connection is closed."""

HOW_TO_GET_IT = f"pip install ./namesrv_engine-{__version__}-*.whl (in a clone: make engine)"
"""How the native engine is installed."""

# How large requests may be.

REGISTER_BROKER = "/namesrv_api.v1.RegistrationService/RegisterBroker"


def max_request_bytes(path: str) -> int:
    """The largest request of a call."""
    return MAX_REGISTRATION_BYTES if path == REGISTER_BROKER else MAX_MESSAGE_BYTES


# The dependencies of an answer that the engine may give again by itself: a topic, a broker group, or all clusters.

CLUSTERS_DEPENDENCY = "\0"
"""The dependency of an answer about all clusters and groups."""

KEPT_METHODS = frozenset(
    f"/namesrv_api.v1.RouteService/{name}" for name in ("GetTopicRoute", "BatchGetTopicRoutes", "GetBrokerClusterInfo")
)
"""Calls whose answers may be kept."""


def route_dependencies(state: RouteState, topic: str) -> list[str]:
    """The dependencies of a topic's route: the topic, and the groups that have queues of it."""
    groups = (queue_data.broker for queue_data in state.queue_datas_of(topic))
    return [topic, *map(group_dependency, groups)]


def group_dependency(broker: BrokerKey) -> str:
    """The dependency of a group; no topic begins so."""
    return f"\0{broker.cluster_name}\0{broker.broker_name}"


# The context of a call. The context of the development engine is gRPC's own, which the functions below pass over.

Again = Callable[[], bytes | None]
"""Does all that the call asks for once more, and counts it, and returns the answer. None, with nothing done: the call
has to be looked at as a whole, because it may not end well. Never waits."""


class EngineCall(ABC):
    """What the native engine offers the servicer of a call in addition to gRPC's context."""

    @abstractmethod
    def may_keep(self, request: Message, dependencies: Sequence[str]) -> None:
        """Names all dependencies of the answer, which is computed in this very step: the engine may give it again."""

    @abstractmethod
    def may_repeat(self, again: Again) -> None:
        """Says how the call, answered well in this very step, is answered when the same bytes come from its caller."""

    @property
    @abstractmethod
    def doubt(self) -> Doubt | None:
        """Why the end of the call says nothing about its client. None if the client has ended it."""

    @property
    @abstractmethod
    def is_free(self) -> bool:
        """Whether the client has taken the last message of the stream, so that another one can leave at once."""

    @abstractmethod
    def write_to_all(self, streams: Sequence[Self], message: bytes) -> None:
        """Sends a message to free streams of the same server, without their tasks."""


def may_keep(context: Context, request: Message, dependencies: Callable[[], Sequence[str]]) -> None:
    """Names the dependencies of the answer, if the engine keeps answers. The answer must be given in this very step."""
    if isinstance(context, EngineCall):
        context.may_keep(request, dependencies())


def engine_call(context: Context) -> EngineCall | None:
    """The context of a call, if its engine can do more than gRPC's own."""
    return context if isinstance(context, EngineCall) else None


# Requests of RocketMQ's protocol.


class FrameCall(Protocol):
    """A request of RocketMQ's protocol. It is answered once."""

    connection: int
    """Its connection, which the engine numbers."""
    peer: str
    """Where it comes from, HOST:PORT."""
    encoding: int
    """Of its header."""
    header: bytes
    body: bytes

    @property
    def names(self) -> Mapping[str, Sequence[bytes]]:
        """The names in the certificate of the connection, as gRPC keys them; none without a certificate."""

    def answer(self, frame: bytes) -> None:
        """Sends a frame; none if it is empty."""

    def may_keep(self, dependencies: Sequence[str], *, is_admitted: bool = True) -> None:
        """Names all dependencies of the answer before it is computed: the engine may give it to equal requests.

        Args:
            is_admitted: Whether the caller has proved in this very step that it may look up.
        """

    def may_repeat(self, again: Again) -> None:
        """Says how the request is answered when it comes again over its connection."""

    def release(self) -> None:
        """Frees what the engine holds of the request."""

    @property
    def close(self) -> Callable[[], None]:
        """Ends the connection once its answers have left. Does not hold the request."""


class Requests(NamedTuple):
    """Requests of RocketMQ's protocol that are counted together."""

    code: int | None
    """None: all codes that have no entry."""
    may_be_kept: bool = False
    may_be_known: bool = False


class GoAway(NamedTuple):
    """The answer of a server that ends to requests of RocketMQ's protocol."""

    later_than: int
    """Versions of clients after this one know it."""
    answers: list[bytes]
    """The answer with each encoding of its header."""


class FrameHandler(Protocol):
    """Answers requests of RocketMQ's protocol."""

    requests: Sequence[Requests]
    """Requests that the engine may answer by itself, or know by numbers."""
    go_away: GoAway

    def received(self, call: FrameCall) -> None: ...

    def left(self, connection_id: int, doubt: Doubt | None) -> None:
        """A connection has ended. It has no further request."""


FrameHits = Mapping[int, tuple[int, float]]
"""Answers to requests of RocketMQ's protocol that the engine gave by itself, by code: how many, and the seconds they
took."""

# The server.

LISTENER_SECONDS = 5.0
"""How long the stop of an engine may take beyond the time that calls get."""

Hits = Mapping[tuple[str, grpc.StatusCode], tuple[int, float]]
"""Answers that the engine gave by itself, by method and code: how many, and the seconds they took."""


EndOfPiece = Callable[[bytes, int, int, int], int]
"""Returns where the piece of a message ends that begins at a position, of at least so many bytes and at most so many
fields. All pieces, merged one after the other, are the same message; what cannot be cut is one piece."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class EngineFailed(Exception):
    """The engine stopped by itself, or a part of it did. The text is the cause."""


class EngineServer:
    """A server that carries the calls of a name server: here gRPC's own for Python, the development engine.

    It keeps no answer and has no figures. Another engine overrides all methods.
    """

    end_of_piece: EndOfPiece | None = None
    """Cuts large requests into pieces. None if they are parsed whole."""

    def __init__(self) -> None:
        # Without so_reuseport=0, gRPC shares the port with another server of this user, which gets half of the calls.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_REGISTRATION_BYTES)]
        self._server = grpc.aio.server(options=options)

    def add_handlers(self, service_name: str, handlers: Mapping[str, Handler]) -> None:
        """Serves calls of a service, given by their names. Their handlers take and give bytes."""
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, dict(handlers)),))

    def listen(self, address: str, sockets: list[socket.socket], frames: FrameHandler | None = None) -> int:
        """Listens for gRPC, at the sockets if there are any. Returns the port.

        Args:
            frames: Has it listen for RocketMQ's protocol instead, which only the native engine speaks.

        Raises:
            OSError or RuntimeError: The port is in use, or the address is not this machine's.
            ValueError: The engine takes no sockets.
        """
        assert frames is None, "the settings refuse it"
        if sockets:
            raise ValueError(
                "engine is development, which cannot take the listener that systemd hands over: "
                "use the native engine, or disable namesrv.socket"
            )
        return self._server.add_insecure_port(address)

    async def start(self) -> None:
        """Begins to accept. Raises ValueError if the certificates cannot be used."""
        _log.warning("development_engine", problem="it keeps no limits: it is for trying things out on this machine")
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Takes no more connections, lets calls under way end for so many seconds, then cuts them."""
        await self._server.stop(grace)

    def keep_answers_of(self, state: RouteState, *, follows_traces: bool) -> None:
        """Keeps answers of these tables from now on.

        Args:
            follows_traces: Whether the servicers see each call that its caller has traced.
        """

    def show_certificates(self) -> None:
        """Shows the certificates in force to new connections, because they were read again."""

    def forget_callers(self) -> None:
        """Has every caller be decided on again, because permits changed."""

    async def until_failed(self) -> None:
        """Raises EngineFailed when a started engine fails. Runs until cancelled, or returns if it cannot tell."""

    def hits(self) -> Hits:
        """The calls that the engine has answered from its cache."""
        return {}

    def frame_hits(self) -> FrameHits:
        """The same of RocketMQ's protocol."""
        return {}

    def stats(self) -> Mapping[str, int]:
        """Figures of the engine by the names of their metrics; none if it has none."""
        return {}

    def http2_errors(self) -> Mapping[str, int]:
        """HTTP/2 errors that were reported to clients, by reason."""
        return {}


# Whether there is a native engine.

NATIVE_PACKAGE = "namesrv-engine"
"""The distribution of the native engine; its module is ``namesrv_engine``."""


def certificate_check(settings: NamesrvSettings) -> CertificateCheck | None:
    """Refuses certificates that the engine of the settings cannot use. None if it can use all that OpenSSL can."""
    if settings.engine == "development" or native_problem() is not None:
        return None
    check: CertificateCheck = import_module("namesrv_engine").check_tls
    return check


def native_problem() -> str | None:
    """Returns why the native engine cannot be used here; None if it can."""
    try:
        version = import_module("namesrv_engine").__version__
    except ModuleNotFoundError as error:
        return f"{NATIVE_PACKAGE} is not installed ({error})"
    except Exception as error:  # noqa: BLE001 - a broken binary raises anything
        return f"{NATIVE_PACKAGE} cannot be loaded ({error})"
    if version != __version__:
        return f"{NATIVE_PACKAGE} is of version {version}, and namesrv of {__version__}"
    return None
