"""What is counted and logged where it happens, without being asked for, and what diagnostics tell."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest
from namesrv_internal.v1.diagnostics_service_pb2 import GetDiagnosticsRequest, GetDiagnosticsResponse
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from namesrv.app.channels import TICK_SECONDS, StallDetector
from namesrv.app.event_log import RegistrationCounter, RegistrationLog, listen_for_warnings
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import BrokerKey, DataVersion, Registration
from namesrv.grpc_api.admin import COUNT_SECONDS, DiagnosticsCalls
from namesrv.metrics import AnsweredCalls
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import SMALL_FLEETS, A, B, Fleet
from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(replace(SMALL_FLEETS, mass_loss_hold_seconds=90.0))


def channels_of(fleet: Fleet, count: int) -> list[str]:
    """One channel for each of so many brokers, and the guard's log line."""
    listen_for_warnings(fleet.state)
    channels = [fleet.state.open_channel() for _ in range(count)]
    for number, channel in enumerate(channels):
        fleet.register(f"10.0.0.{number}:10911", name=f"broker-{number}", topics=[f"T{number}"], channel_id=channel)
    return channels


def told(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["event"] == "mass_loss_guard"]


def test_a_fleet_that_is_held_is_one_warning_with_how_many_the_first_of_them_and_for_how_long(fleet: Fleet) -> None:
    channels = channels_of(fleet, 1)
    for number in range(1, 6):
        fleet.register(f"10.0.0.{number}:10911", name=f"broker-{number}", channel_id=channels[0])
    with capture_logs() as logs:
        fleet.end_channel(channels[0])
    assert told(logs) == [
        {
            "event": "mass_loss_guard",
            "log_level": "warning",
            "brokers": 6,
            "brought_back": 0,
            "first": "broker-0 (10.0.0.0:10911, id 0) of DefaultCluster, "
            "broker-1 (10.0.0.1:10911, id 0) of DefaultCluster, "
            "broker-2 (10.0.0.2:10911, id 0) of DefaultCluster",
            "hold_seconds": 90.0,
            "revision": fleet.state.revision,
        }
    ]


def test_those_that_the_guard_brings_back_and_those_that_it_holds_afterwards_are_told_too(fleet: Fleet) -> None:
    channels = channels_of(fleet, 5)
    with capture_logs() as logs:
        for channel in channels[:2]:
            fleet.end_channel(channel)
        assert told(logs) == []
        for channel in channels[2:4]:
            fleet.end_channel(channel)
    assert [(line["brokers"], line["brought_back"]) for line in told(logs)] == [(3, 2), (1, 0)]
    assert "broker-0 (" in told(logs)[0]["first"]
    assert told(logs)[1]["first"].startswith("broker-3 (")


def test_a_group_of_a_name_that_another_cluster_has_is_told_once_each_time_it_comes(fleet: Fleet) -> None:
    listen_for_warnings(fleet.state)
    with capture_logs() as logs:
        fleet.register(A, cluster="c1")
        fleet.register(B, cluster="c2")
        fleet.register(B, cluster="c2", topics=["Other"], version=DataVersion(2, 2))
        fleet.register("127.0.0.1:30911", cluster="c2", name="broker-b")
    assert logs == [
        {
            "event": "broker_name_in_two_clusters",
            "log_level": "warning",
            "broker": "broker-a",
            "first": "c1",
            "cluster": "c2",
            "revision": 2,
        }
    ]
    assert list(fleet.state.index.clusters_by_name["broker-a"]) == ["c1", "c2"]
    fleet.unregister(A, cluster="c1")
    assert list(fleet.state.index.clusters_by_name["broker-a"]) == ["c2"]


def test_topics_that_are_passed_over_are_one_warning_with_what_is_wrong_with_the_first() -> None:
    registration = Registration(BrokerKey("c1", "broker-a"), 0, A, DataVersion(1, 1), {}, topic_by_topic=True)
    with capture_logs() as logs:
        RegistrationLog().topics_skipped(registration, 12, {"a\n": "is odd", "T": "has a perm that is no number"})
    assert logs == [
        {
            "event": "topics_skipped",
            "log_level": "warning",
            "cluster": "c1",
            "broker": "broker-a",
            "addr": A,
            "skipped": 12,
            "first": "'a\\n' is odd; 'T' has a perm that is no number",
            "not_told": 0,
        }
    ]


def diagnostics_of(calls: DiagnosticsCalls) -> GetDiagnosticsResponse:
    return asyncio.run(calls.GetDiagnostics(GetDiagnosticsRequest(), CONTEXT))


def test_diagnostics_tell_tasks_delays_and_refused_registrations() -> None:
    clock = VirtualClock()
    detector = StallDetector(clock.monotonic, lambda _: None, 10.0)
    tally = RegistrationCounter(clock.monotonic)
    calls = DiagnosticsCalls(detector, tally)
    detector.begin()
    clock.advance(TICK_SECONDS + 0.5)
    expected = GetDiagnosticsResponse(task_count=1, loop_lag_millis=500.0)
    assert diagnostics_of(calls) == expected
    tally.count("increment", "refused")
    assert diagnostics_of(calls) == expected, "an agent repeats it in full"
    tally.count("full", "refused", Refused(Reason.CHANNEL_GONE, "a lost channel"))
    assert diagnostics_of(calls) == expected, "an agent opens another channel"
    tally.count("full", "refused")
    tally.skipped(1)
    clock.advance(2.0)
    assert (diagnostics_of(calls).refused_ago_millis, diagnostics_of(calls).skipped_ago_millis) == (2_000, 2_000)


def test_tasks_are_counted_once_a_second_however_often_somebody_asks() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        detector = StallDetector(loop.time, lambda _: None, 10.0)
        calls = DiagnosticsCalls(detector, RegistrationCounter())

        async def count() -> int:
            return (await calls.GetDiagnostics(GetDiagnosticsRequest(), CONTEXT)).task_count

        clock = loop.time()
        loop.time = lambda: clock  # type: ignore[method-assign]
        assert await count() == 1
        more = asyncio.create_task(asyncio.sleep(3600))
        assert await count() == 1
        clock += COUNT_SECONDS
        assert await count() == 2
        more.cancel()

    asyncio.run(run())


def test_calls_that_the_engine_answered_are_added_to_those_that_were_observed() -> None:
    registry = CollectorRegistry()
    ok, method = grpc.StatusCode.OK, "a.B/C"
    hits = {(method, ok): (5, 0.25), (method, grpc.StatusCode.NOT_FOUND): (2, 0.5)}
    ended = AnsweredCalls(registry, lambda: hits).of(method, streams=False)(lambda: ())
    assert ended is not None
    ended(ok)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"grpc_method": method, **labels})

    assert value("grpc_server_call_started_total") == 8
    duration = "grpc_server_call_duration_seconds"
    assert value(f"{duration}_count", grpc_status="OK") == value(f"{duration}_bucket", grpc_status="OK", le="+Inf") == 6
    assert value(f"{duration}_count", grpc_status="NOT_FOUND") == 2
    assert value(f"{duration}_sum", grpc_status="NOT_FOUND") == 0.5
    assert value(f"{duration}_bucket", grpc_status="NOT_FOUND", le="0.0001") == 2
