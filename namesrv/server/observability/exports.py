"""Exports of metrics and traces: over HTTP, and to a collector."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry

from groundwork.endpoints import Endpoint
from groundwork.telemetry.call_metrics import CallMetrics
from groundwork.telemetry.call_observers import CallObserver
from groundwork.telemetry.metrics_server import MetricsServer, metrics_registry
from groundwork.telemetry.signals import open_telemetry
from namesrv.config.settings import NamesrvSettings


class Readiness(Protocol):
    """Says what is wrong; None if nothing is."""

    def alive(self) -> str | None: ...  # noqa: D102
    def ready(self) -> str | None: ...  # noqa: D102


class Observability:
    """Costs nothing where neither a listener nor a variable OTEL_... asks for it."""

    def __init__(self, settings: NamesrvSettings, metrics_of: Callable[[CollectorRegistry], Readiness]) -> None:
        """Takes the listener's port; answers and sends once started.

        Args:
            settings: Whether and where.
            metrics_of: Adds what is told of the server, if anybody wants to know.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
            ValueError: The variables OTEL_... cannot be followed.
        """
        registry = metrics_registry()
        self._telemetry = open_telemetry("namesrv", os.environ, registry, traces_follow_callers=True)
        self._listener: MetricsServer | None = None
        self.observers: tuple[CallObserver, ...] = ()
        """Watch the calls."""
        traces = self._telemetry.call_traces if self._telemetry else None
        if settings.metrics_listen or self._telemetry:
            self.observers = (CallMetrics(registry),) if traces is None else (CallMetrics(registry), traces)
            metrics = metrics_of(registry)
            if settings.metrics_listen:
                listen = Endpoint.parse(settings.metrics_listen, allow_port_zero=True)
                self._listener = MetricsServer(listen, registry, metrics.alive, metrics.ready)

    @property
    def endpoint(self) -> Endpoint | None:
        """Where metrics are; None if nowhere."""
        return self._listener.endpoint if self._listener else None

    def start(self) -> None:
        """Starts to answer and to send."""
        if self._listener is not None:
            self._listener.start()
        if self._telemetry is not None:
            self._telemetry.start()

    async def stop(self) -> None:
        """Sends what is left, for a few seconds at most, and gives the port back."""
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.stop)
        if self._listener is not None:
            self._listener.stop()
