"""The listeners of the agent: what both have in common, and the fast one, for operators and other agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
from broker_agent_api.v1 import broker_agent_service_pb2 as pb
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from broker_agent.auth import MethodGate, Rule
from broker_agent.errors import FAILURES, StartError
from namesrv_common.endpoints import Endpoint
from namesrv_common.process.program import descriptors_of_listener, return_freed_memory
from namesrv_common.process.shutdown import DaemonExecutor, LoopThread
from namesrv_common.process.systemd import check_bindable, feed_watchdog, watchdog_seconds
from namesrv_common.server.call_metrics import CallObserver
from namesrv_common.server.health_service import SERVICE as HEALTH_SERVICE
from namesrv_common.server.health_service import HealthService, ShareGate
from namesrv_common.server.permits import OpenCalls
from namesrv_common.server.rpc_handlers import CallHandlers, Context, methods_of
from namesrv_common.server.shares import Shares, sharer_at
from namesrv_common.tls.listener_tls import ListenerTls

MAX_MESSAGE_BYTES = 1024 * 1024
"""Largest request of either listener: parsing a heartbeat must not block others, and a topic is far smaller."""
MAX_METADATA_BYTES = 16 * 1024
"""Largest metadata of a request: it is in memory before the call is known."""
MAX_CONCURRENT_STREAMS = 100
"""Most calls open on one connection. More wait at the client."""
MIN_PING_INTERVAL_MILLIS = 800
"""Clients may ping once a second, as programs in Go and Java are set to do, and as often as they are pinged. The
interval is a fifth shorter, for their clocks."""
SLOW_READER_SECONDS = 30.0
"""Time after which a stream of either listener ends if its client reads nothing."""
STOP_SECONDS = 1.0
"""Time that calls in progress get at the end."""


@dataclass(frozen=True, slots=True)
class Callers:
    """How callers of a listener are known, what they may do, and what watches their calls."""

    tls: ListenerTls | None = None
    rule: Rule = lambda *_: None
    """Says which callers may make which calls; by default all."""
    observers: Sequence[CallObserver] = ()


ANYONE = Callers()


class LoopListener:
    """Serves services and health checks. Has a thread only once started."""

    def __init__(
        self,
        setting: str,
        listen: Endpoint,
        services: Iterable[tuple[ServiceDescriptor, object]],
        *,
        max_connections: int,
        max_pending_requests: int,
        keepalive_seconds: float,
        most_health_calls: int,
        most_calls: int | None = None,
        more_options: Sequence[tuple[str, int]] = (),
        callers: Callers,
    ) -> None:
        """Takes the port; answers only once started.

        Args:
            setting: The setting that names the address, for errors.
            listen: Where to listen; port 0 means any free one.
            services: The object that answers each service, by asyncio.
            keepalive_seconds: Silence after which a peer is pinged, and the time for its answer.
            most_health_calls: Most open health checks and watches.

        Raises:
            StartError: The port is in use, or the address is not this machine's.
        """
        try:
            check_bindable(listen)
        except OSError as error:
            raise StartError(f"setting {setting}: {error}") from error
        self._runner = LoopThread(f"broker-agent-{setting}")
        self._background: list[asyncio.Task[None]] = []
        self._open_calls = OpenCalls()
        self._health = HealthService()
        health_gate = ShareGate(Shares("open calls of health", most_health_calls))
        health_handlers = CallHandlers(FAILURES, SLOW_READER_SECONDS, gate_of=lambda _: health_gate)
        gate_of = partial(MethodGate, callers.rule, open_calls=self._open_calls)
        handlers = CallHandlers(FAILURES, SLOW_READER_SECONDS, gate_of=gate_of, observers=callers.observers)

        keepalive_millis = round(keepalive_seconds * 1000)
        ping_interval = min(keepalive_millis * 4 // 5, MIN_PING_INTERVAL_MILLIS)
        options = [
            # gRPC closes the others at once. Without a bound they take all descriptors.
            ("grpc.max_allowed_incoming_connections", min(max_connections, descriptors_of_listener())),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            # Between the two limits gRPC refuses calls at random: the same metadata is now taken and now refused.
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
            # Below the number of calls that come at once after a restart, gRPC answers CANCELLED to the rest.
            ("grpc.server.max_pending_requests", max_pending_requests),
            ("grpc.server.max_pending_requests_hard_limit", max_pending_requests),
            ("grpc.keepalive_time_ms", keepalive_millis),
            ("grpc.keepalive_timeout_ms", keepalive_millis),
            # gRPC takes a dead peer's time from here and not from keepalive_timeout_ms; its default is a minute.
            ("grpc.http2.ping_timeout_ms", keepalive_millis),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", ping_interval),
            ("grpc.http2.min_ping_interval_without_data_ms", ping_interval),
            # By default gRPC shares the port, silently, with another server of this user, which gets half of the calls.
            ("grpc.so_reuseport", 0),
            *more_options,
        ]

        async def bind() -> int:
            self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=most_calls)
            health_handlers.add_service(self._server, HEALTH_SERVICE, (self._health,))
            for service, part in services:
                handlers.add_service(self._server, service, (part,))
            if callers.tls is None:
                return self._server.add_insecure_port(str(listen))
            return self._server.add_secure_port(str(listen), callers.tls.credentials())

        try:
            port = self._runner.run(bind())
        except RuntimeError as error:
            self._runner.close()
            raise StartError(f"setting {setting}: cannot listen on {listen}: {error}") from error
        self.endpoint = Endpoint(listen.host, port)
        """Where it listens."""

    def start(self) -> None:
        self._runner.start()
        self._runner.run(self._start())

    def check_again(self) -> None:
        """Ends the calls under way whose callers have lost the right to them. Thread-safe."""
        self._runner.begin(self._open_calls.check_again())

    def stop(self) -> None:
        """Ends calls in progress and gives the port back. A second call does nothing."""
        if self._runner.is_over:
            return
        if not self._runner.has_started:
            self._runner.run(self._server.start())  # otherwise gRPC does not give the port back
        self._runner.stop(self._stop())

    async def _start(self) -> None:
        await self._server.start()
        self._background += map(asyncio.create_task, self._works())

    async def _stop(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._server.stop(STOP_SECONDS)

    def _works(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Returns what runs in the event loop next to the calls."""
        return ()


# Threads in which calls that block are answered, while an event loop receives them.

ResultT = TypeVar("ResultT")


class CallThreads:
    """A fixed number of threads. A call waits for one in the event loop, and leaves nothing behind if it is cancelled.

    In the queue of an executor it would stay, with its request, until a thread was free.
    """

    def __init__(self, threads: int, name: str) -> None:
        """Starts them with the first call."""
        self._pool = DaemonExecutor(threads, name)  # a disk that hangs must not keep the process
        self._free = asyncio.Semaphore(threads)

    async def run(self, call: Callable[..., ResultT], *args: Any) -> ResultT:
        """Makes a call in a thread. One that has begun continues if its caller leaves, and keeps its thread."""
        await self._free.acquire()
        try:
            work = asyncio.get_running_loop().run_in_executor(self._pool, call, *args)
        except BaseException:
            self._free.release()
            raise
        work.add_done_callback(lambda _: self._free.release())
        return await asyncio.shield(work)  # else its thread would count as free once its caller leaves

    def shutdown(self) -> None:
        """Takes no more calls, and waits for none."""
        self._pool.shutdown(wait=False)


# Limits on what operators and other agents may send to the fast listener and hold there.

MAX_CONNECTIONS = 2_000
"""Most connections, or half of the file descriptors less 256. Operators and slaves connect for a while only."""
MAX_PENDING_REQUESTS = 10_000
"""Most calls that wait to be accepted. gRPC cancels more."""
MAX_WAITING_CALLS = 10_000
"""Most calls that arrive, wait for a thread or run. More are refused with RESOURCE_EXHAUSTED."""
KEEPALIVE_SECONDS = 20.0
"""Silence after which a peer is pinged, and the time for its answer."""
MAX_CONNECTION_AGE_SECONDS = 120.0
"""Age after which a connection gets GOAWAY: gRPC has no other limit on the time of an incomplete request."""
CONNECTION_AGE_GRACE_SECONDS = 30.0
"""Time for the calls of such a connection, until it is closed."""


# The fast listener. Requests are received by an event loop, and each is answered in a thread once it has arrived in
# full. A client that sends half a request holds no thread.

SERVICE = pb.DESCRIPTOR.services_by_name["BrokerAgentService"]
SERVICE_NAME = SERVICE.full_name
THREADS = 8
"""Calls that one listener works on at once. Health checks take none."""
MAX_TOPIC_LISTS = 32
"""Most open lists of topics. Each holds a version of the table. One address has half."""
MAX_HEALTH_CALLS = 1_000
"""Most open health checks and watches of a listener. One address has half."""
_Status = health_pb2.HealthCheckResponse.ServingStatus


class AgentServer(LoopListener):
    """Answers health checks, NOT_SERVING until told otherwise, and the services that it is given."""

    def __init__(
        self, listen: Endpoint, services: Sequence[tuple[ServiceDescriptor, object]], callers: Callers = ANYONE
    ) -> None:
        """Takes the port; answers only once started. Raises StartError.

        Args:
            services: The object that answers each service. A call without a method of its name is not served. Methods
                block; those of streams return iterators that block.
        """
        self._accepted = self._stopping = False
        self._threads = CallThreads(THREADS, "broker-agent-server")
        streams = Shares("open lists of topics", MAX_TOPIC_LISTS)
        super().__init__(
            "fast_listen",
            listen,
            [(service, _in_threads(service, part, self._threads, streams)) for service, part in services],
            max_connections=MAX_CONNECTIONS,
            max_pending_requests=MAX_PENDING_REQUESTS,
            keepalive_seconds=KEEPALIVE_SECONDS,
            more_options=[
                ("grpc.max_connection_age_ms", round(MAX_CONNECTION_AGE_SECONDS * 1000)),
                ("grpc.max_connection_age_grace_ms", round(CONNECTION_AGE_GRACE_SECONDS * 1000)),
            ],
            most_health_calls=MAX_HEALTH_CALLS,
            most_calls=MAX_WAITING_CALLS,
            callers=callers,
        )
        self._runner.run(self._report_health())

    @property
    def not_serving(self) -> str | None:
        """Why health checks say NOT_SERVING; None if they do not."""
        if self._stopping:
            return "shutting down"
        return None if self._accepted else "no name server has accepted the registration yet"

    def set_serving(self) -> None:
        """Reports SERVING from now on, unless the end has begun."""
        self._accepted = True
        self._runner.begin(self._report_health())

    def enter_shutdown(self) -> None:
        """Reports NOT_SERVING from now on, whatever happens."""
        self._stopping = True
        self._runner.begin(self._report_health())

    def stop(self) -> None:
        """Ends calls in progress and gives the port back. A second call does nothing."""
        super().stop()
        self._threads.shutdown()

    def _works(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Gives back what floods have left, on either listener, and feeds systemd's watchdog."""
        yield return_freed_memory()
        if seconds := watchdog_seconds():
            yield feed_watchdog(seconds)

    async def _report_health(self) -> None:
        for service in ("", SERVICE_NAME):
            self._health.set(service, _Status.NOT_SERVING if self.not_serving else _Status.SERVING)


def _in_threads(service: ServiceDescriptor, part: object, threads: CallThreads, streams: Shares) -> object:
    """Returns the calls of a part that blocks. Each runs in a thread."""
    calls: dict[str, Any] = {}
    for method in methods_of(service, part):
        call = getattr(part, method.name)
        calls[method.name] = partial(threads.run, call)
        if method.server_streaming:
            calls[method.name] = partial(_stream_in_threads, threads, streams, call)
    return SimpleNamespace(**calls)


async def _stream_in_threads(
    threads: CallThreads, streams: Shares, call: Callable[..., Iterator[Message]], request: Message, context: Context
) -> AsyncIterator[Message]:
    """Makes each message in a thread. A reader that takes nothing holds no thread."""
    with streams.holding(sharer_at(context.peer())):
        messages = await threads.run(call, request, context)
        while (message := await threads.run(next, messages, None)) is not None:
            yield message
