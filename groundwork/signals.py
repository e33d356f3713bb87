"""The signals that go to an OpenTelemetry collector, as the standard variables OTEL_... say.

Nothing of OpenTelemetry is loaded unless they ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from groundwork.printable import how_to_install
from groundwork.version import __version__

if TYPE_CHECKING:
    from groundwork.otlp import Telemetry

OTEL_EXTRA = "otel"
"""The extra that brings the needed packages."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What is exported."""

    metrics: bool
    """All that the program's page /metrics has."""
    traces: bool
    """Spans of calls."""

    @classmethod
    def wanted(cls, environ: Mapping[str, str]) -> Signals:
        """What the variables ask for: a signal whose exporter is otlp, or that has an endpoint and no exporter named.

        Raises:
            ValueError: They ask for something that these programs do not have; the text names the variable.
        """
        if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return cls(metrics=False, traces=False)
        return cls(metrics=_is_wanted("METRICS", environ), traces=_is_wanted("TRACES", environ))


def open_telemetry(
    service: str, environ: Mapping[str, str], registry: CollectorRegistry, *, traces_follow_callers: bool
) -> Telemetry | None:
    """The exporter, not started yet; None if the variables ask for nothing.

    Args:
        service: What the program is called, unless OTEL_SERVICE_NAME says it.
        traces_follow_callers: Without OTEL_TRACES_SAMPLER, only calls whose callers trace them have spans: for a
            server of many short calls. Otherwise all have, as the standard says.

    Raises:
        ValueError: The variables cannot be followed, or a package is missing; the text says what to do.
    """
    signals = Signals.wanted(environ)
    if not signals.metrics and not signals.traces:
        return None
    try:
        otlp = import_module("groundwork.otlp")
    except ModuleNotFoundError as error:
        problem = f"variables OTEL_... ask for an export, and {error.name} is missing; {how_to_install(OTEL_EXTRA)}"
        raise ValueError(problem) from error
    try:
        telemetry: Telemetry = otlp.Telemetry(
            service, __version__, signals, registry, traces_follow_callers=traces_follow_callers
        )
    except ValueError as error:
        raise ValueError(f"a variable OTEL_... cannot be used: {error}") from error
    return telemetry


def _is_wanted(signal: str, environ: Mapping[str, str]) -> bool:
    variable = f"OTEL_{signal}_EXPORTER"
    exporter = environ.get(variable, "").strip()
    if exporter not in ("", "otlp", "none"):
        raise ValueError(f"{variable} is {exporter!r}, must be otlp or none")
    endpoints = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if exporter == "none" or not (exporter or any(environ.get(name) for name in endpoints)):
        return False
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environ.get(name, "").strip()
        if protocol:
            if protocol != "grpc":
                raise ValueError(f"{name} is {protocol!r}, must be grpc: collectors take it at port 4317")
            break
    return True
