"""A gRPC listener on an event loop in a thread of its own: what both listeners of the agent have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from broker_agent.errors import FAILURES, StartError
from namesrv_common.endpoints import Endpoint
from namesrv_common.server.grpcio_server import check_bindable
from namesrv_common.server.health_service import HealthService
from namesrv_common.server.loop_thread import LoopThread
from namesrv_common.server.open_calls import OpenCalls
from namesrv_common.server.rpc_handlers import CallHandlers
from namesrv_common.server.share_gate import ShareGate
from namesrv_common.server.shares import Shares
from namesrv_common.tls.listener_tls import ListenerTls

STOP_SECONDS = 1.0
"""Time that calls in progress get at the end."""


class LoopListener:
    """Serves what a subclass adds, and health checks. Has a thread only once started."""

    def __init__(
        self, setting: str, listen: Endpoint, tls: ListenerTls | None, thread: str, most_health_calls: int
    ) -> None:
        """Checks the address. ``_listen`` must follow.

        Args:
            setting: The setting that names the address, for errors.
            listen: Where to listen; port 0 means any free one.
            thread: Name of the thread.
            most_health_calls: Most open health checks and watches.

        Raises:
            StartError: The port is in use, or the address is not this machine's.
        """
        try:
            check_bindable(listen)
        except OSError as error:
            raise StartError(f"setting {setting}: {error}") from error
        self.endpoint = listen
        """Where it listens."""
        self._setting = setting
        self._tls = tls
        self._runner = LoopThread(thread)
        self._open_calls = OpenCalls()
        self._health = HealthService()
        self._health_gate = ShareGate(Shares("open calls of health", most_health_calls))

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

    def _listen(
        self,
        options: Sequence[tuple[str, int]],
        slow_reader_seconds: float,
        add_services: Callable[[grpc.aio.Server], None],
        most_calls: int | None = None,
    ) -> None:
        """Takes the port. Raises StartError."""

        async def bind() -> int:
            self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=most_calls)
            handlers = CallHandlers(FAILURES, slow_reader_seconds, gate_of=lambda _: self._health_gate)
            self._health.add_to(self._server, handlers)
            add_services(self._server)
            if self._tls is None:
                return self._server.add_insecure_port(str(self.endpoint))
            return self._server.add_secure_port(str(self.endpoint), self._tls.credentials())

        try:
            port = self._runner.run(bind())
        except RuntimeError as error:
            self._runner.close()
            raise StartError(f"setting {self._setting}: cannot listen on {self.endpoint}: {error}") from error
        self.endpoint = Endpoint(self.endpoint.host, port)

    async def _start(self) -> None:
        await self._server.start()

    async def _stop(self) -> None:
        await self._server.stop(STOP_SECONDS)
