"""Exports of metrics and traces: over HTTP, and to a collector."""

from __future__ import annotations

import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from broker_agent.errors import StartError
from broker_agent.target.namesrv_target import Interceptors
from groundwork.call_metrics import CallMetrics, CallObserver, ClientCallMetrics
from groundwork.endpoints import Endpoint
from groundwork.metrics_http import Check, Exports, MetricsServer, metrics_registry
from groundwork.signals import open_telemetry


class AgentObservability(Exports):
    """Costs nothing where neither a listener nor a variable OTEL_... asks for it."""

    def __init__(self, listen: str | None) -> None:
        """Prepares it; answers nobody yet.

        Args:
            listen: Where metrics are to be, host:port; None: nowhere.

        Raises:
            StartError: The variables OTEL_... cannot be followed.
        """
        self._listen = None if listen is None else Endpoint.parse(listen, allow_port_zero=True)
        self._registry = metrics_registry()
        try:
            super().__init__(open_telemetry("broker-agent", os.environ, self._registry, traces_follow_callers=False))
        except ValueError as error:
            raise StartError(str(error)) from error
        is_wanted = self._listen is not None or self.telemetry is not None
        self._client_calls = ClientCallMetrics(self._registry) if is_wanted else None
        self.observers: tuple[CallObserver, ...] = (CallMetrics(self._registry),) if is_wanted else ()
        """Watch the calls to the agent. These have no spans: there may be a heartbeat of every client among them."""

    def listen(self, collect: Callable[[CollectorRegistry], object], alive: Check, ready: Check) -> None:
        """Takes the listener's port, and has the agent's own metrics put into the registry.

        Raises:
            StartError: The port is in use, or the address is not this machine's.
        """
        if self._client_calls is None:
            return
        collect(self._registry)
        if self._listen is not None:
            try:
                self.listener = MetricsServer(self._listen, self._registry, alive, ready)
            except OSError as error:
                raise StartError(f"setting metrics_listen: {error}") from error

    def interceptors(self, target: Endpoint) -> Interceptors:
        """The interceptors that watch the calls to a name server."""
        measured = None if self._client_calls is None else self._client_calls.interceptor(str(target))
        traced = None if self.telemetry is None else self.telemetry.traced_calls(str(target))
        return [interceptor for interceptor in (measured, traced) if interceptor is not None]

    def forget(self, target: Endpoint) -> None:
        """A name server has left the list."""
        if self._client_calls is not None:
            self._client_calls.forget(str(target))
