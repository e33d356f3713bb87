"""Exports of metrics and traces: over HTTP, and to a collector."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry

from groundwork.endpoints import Endpoint
from groundwork.telemetry.call_metrics import CallMetrics
from groundwork.telemetry.call_observers import CallObserver
from groundwork.telemetry.exports import Exports
from groundwork.telemetry.metrics_server import MetricsServer, metrics_registry
from groundwork.telemetry.signals import open_telemetry
from namesrv.config.settings import NamesrvSettings
from namesrv.server.engines.chosen_engine import ChosenEngine
from namesrv.server.observability.engine_metrics import EngineMetrics


class Readiness(Protocol):
    """Says what is wrong; None if nothing is."""

    def alive(self) -> str | None: ...  # noqa: D102
    def ready(self) -> str | None: ...  # noqa: D102


class Observability(Exports):
    """Costs nothing where neither a listener nor a variable OTEL_... asks for it."""

    def __init__(
        self,
        settings: NamesrvSettings,
        metrics_of: Callable[[CollectorRegistry], Readiness],
        server: object,
        engine: ChosenEngine,
    ) -> None:
        """Takes the listener's port; answers and sends once started.

        Args:
            settings: Whether and where.
            metrics_of: Adds what is told of the server, if anybody wants to know.
            server: Carries the calls, and may answer some of them by itself.
            engine: The engine that the server is of.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
            ValueError: The variables OTEL_... cannot be followed.
        """
        registry = metrics_registry()
        super().__init__(open_telemetry("namesrv", os.environ, registry, traces_follow_callers=True))
        self.begins_traces = self.telemetry is not None and self.telemetry.begins_traces
        """Whether any call may be traced, which only the sampler knows."""
        self.observers: tuple[CallObserver, ...] = ()
        """Watch the calls."""
        traces = self.telemetry.call_traces if self.telemetry else None
        if settings.metrics_listen or self.telemetry:
            calls = CallMetrics(registry, getattr(server, "hits", dict))
            self.observers = (calls,) if traces is None else (calls, traces)
            EngineMetrics(registry, engine, getattr(server, "stats", dict))
            metrics = metrics_of(registry)
            if settings.metrics_listen:
                listen = Endpoint.parse(settings.metrics_listen, allow_port_zero=True)
                self.listener = MetricsServer(listen, registry, metrics.alive, metrics.ready)
