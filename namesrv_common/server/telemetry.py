"""The decision whether traces go to an OpenTelemetry collector, as the standard variables OTEL_... say.

OpenTelemetry is loaded only if they ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from namesrv_common.printable import how_to_install
from namesrv_common.version import __version__

if TYPE_CHECKING:
    from namesrv_common.server.tracing import Telemetry

OTEL_EXTRA = "otel"
"""The extra that brings the needed packages."""


def open_telemetry(service: str, environ: Mapping[str, str], *, traces_follow_callers: bool) -> Telemetry | None:
    """The exporter of spans; None if the variables ask for nothing.

    Args:
        service: Name of the program, unless OTEL_SERVICE_NAME names it.
        traces_follow_callers: Without OTEL_TRACES_SAMPLER, only calls whose callers trace them have spans: for a
            server of many short calls. Otherwise all have, as the standard says.

    Raises:
        ValueError: The variables cannot be followed, or a package is missing; the text says what to do.
    """
    if not are_traces_wanted(environ):
        return None
    try:
        tracing = import_module("namesrv_common.server.tracing")
    except ModuleNotFoundError as error:
        problem = f"variables OTEL_... ask for an export, and {error.name} is missing; {how_to_install(OTEL_EXTRA)}"
        raise ValueError(problem) from error
    try:
        telemetry: Telemetry = tracing.Telemetry(service, __version__, traces_follow_callers=traces_follow_callers)
    except ValueError as error:
        raise ValueError(f"a variable OTEL_... cannot be used: {error}") from error
    return telemetry


def are_traces_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the variables ask for traces: by the exporter otlp, or by an endpoint with no exporter named.

    Raises:
        ValueError: They ask for something that these programs do not have; the text names the variable.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporter not in ("", "otlp", "none"):
        raise ValueError(f"OTEL_TRACES_EXPORTER is {exporter!r}, must be otlp or none")
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if exporter == "none" or not (exporter or any(environ.get(name) for name in endpoints)):
        return False
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environ.get(name, "").strip()
        if protocol:
            if protocol != "grpc":
                raise ValueError(f"{name} is {protocol!r}, must be grpc: collectors take it at port 4317")
            break
    return True
