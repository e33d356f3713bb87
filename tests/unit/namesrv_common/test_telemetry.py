"""Metrics of calls, and variables OTEL_... that export traces."""

from __future__ import annotations

import sys

import pytest

from namesrv_common.server.metrics_http import are_traces_wanted, open_telemetry

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"OTEL_TRACES_SAMPLER": "always_on", "OTEL_METRICS_EXPORTER": "otlp"}, False),
        (ENDPOINT, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4317"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            True,
        ),
    ],
)
def test_traces_are_sent_where_their_exporter_or_an_endpoint_asks_for_it(environ: dict[str, str], wanted: bool) -> None:
    assert are_traces_wanted(environ) is wanted


def test_a_variable_that_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ValueError, match=r"a variable OTEL_... cannot be used"):
        open_telemetry("namesrv", ENDPOINT, traces_follow_callers=True)


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "namesrv_common.server.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ValueError, match=r"opentelemetry.sdk.trace is missing; install the extra otel: pip "):
        open_telemetry("namesrv", ENDPOINT, traces_follow_callers=True)
