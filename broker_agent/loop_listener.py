"""A gRPC listener on an event loop in a thread of its own: what both listeners of the agent have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from broker_agent.auth import AgentAdmission
from broker_agent.errors import FAILURES, StartError
from namesrv_common.endpoints import Endpoint
from namesrv_common.server.call_metrics import CallObserver
from namesrv_common.server.grpcio_server import check_bindable
from namesrv_common.server.health_service import HealthService, ShareGate
from namesrv_common.server.loop_thread import LoopThread
from namesrv_common.server.open_calls import OpenCalls
from namesrv_common.server.rpc_handlers import CallHandlers
from namesrv_common.server.shares import Shares
from namesrv_common.tls.listener_tls import ListenerTls

STOP_SECONDS = 1.0
"""Time that calls in progress get at the end."""


class LoopListener:
    """Serves services and health checks. Has a thread only once started."""

    def __init__(
        self,
        setting: str,
        listen: Endpoint,
        services: Iterable[tuple[ServiceDescriptor, object]],
        *,
        thread: str,
        options: Sequence[tuple[str, int]],
        slow_reader_seconds: float,
        most_health_calls: int,
        most_calls: int | None = None,
        tls: ListenerTls | None = None,
        admission: AgentAdmission | None = None,
        observers: Sequence[CallObserver] = (),
    ) -> None:
        """Takes the port; answers only once started.

        Args:
            setting: The setting that names the address, for errors.
            listen: Where to listen; port 0 means any free one.
            services: The object that answers each service, by asyncio.
            thread: Name of the thread.
            slow_reader_seconds: How long a reader of a stream may take nothing.
            most_health_calls: Most open health checks and watches.
            admission: Says which callers may make which calls; None lets everybody.

        Raises:
            StartError: The port is in use, or the address is not this machine's.
        """
        try:
            check_bindable(listen)
        except OSError as error:
            raise StartError(f"setting {setting}: {error}") from error
        self._runner = LoopThread(thread)
        self._open_calls = OpenCalls()
        self._health = HealthService()
        health_gate = ShareGate(Shares("open calls of health", most_health_calls))
        health_handlers = CallHandlers(FAILURES, slow_reader_seconds, gate_of=lambda _: health_gate)
        gate_of = partial((admission or AgentAdmission()).gate_of, open_calls=self._open_calls)
        handlers = CallHandlers(FAILURES, slow_reader_seconds, gate_of=gate_of, observers=observers)

        async def bind() -> int:
            self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=most_calls)
            self._health.add_to(self._server, health_handlers)
            for service, part in services:
                handlers.add_service(self._server, service, (part,))
            if tls is None:
                return self._server.add_insecure_port(str(listen))
            return self._server.add_secure_port(str(listen), tls.credentials())

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

    async def _stop(self) -> None:
        await self._server.stop(STOP_SECONDS)
