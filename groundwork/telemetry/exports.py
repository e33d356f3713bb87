"""Ways for metrics and traces to leave a program: an HTTP listener, a collector, both, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from groundwork.endpoints import Endpoint
from groundwork.telemetry.metrics_server import MetricsServer

if TYPE_CHECKING:  # OpenTelemetry is loaded only where it is wanted
    from groundwork.telemetry.otlp import Telemetry


class Exports:
    """A program's listener for metrics and what it sends to a collector, begun and ended together."""

    def __init__(self, telemetry: Telemetry | None) -> None:
        """Takes the exporter to a collector; None: there is none."""
        self.telemetry = telemetry
        self.listener: MetricsServer | None = None
        """The listener that answers scrapes; None: there is none."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Where metrics are; None if nowhere."""
        return self.listener.endpoint if self.listener else None

    def start(self) -> None:
        """Starts to answer and to send."""
        if self.listener is not None:
            self.listener.start()
        if self.telemetry is not None:
            self.telemetry.start()

    def stop(self) -> None:
        """Sends what is left, for a few seconds at most, and gives the port back. Blocks for as long."""
        if self.telemetry is not None:
            self.telemetry.stop()
        if self.listener is not None:
            self.listener.stop()
