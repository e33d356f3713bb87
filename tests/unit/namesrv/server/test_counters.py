"""What is counted where it happens, and what diagnostics tell of it."""

from __future__ import annotations

import asyncio

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2
from namesrv_internal.v1.diagnostics_service_pb2 import GetDiagnosticsRequest, GetDiagnosticsResponse

from namesrv.app.counters import DurationCounter, RegistrationCounter, kind_of
from namesrv.app.stall_detector import TICK_SECONDS, StallDetector
from namesrv.core.errors import Reason, Refused
from namesrv.grpc_api.internal import COUNT_SECONDS, DiagnosticsCalls
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.virtual_clock import VirtualClock

BASE = route_data_pb2.DataVersion(counter=1)
TOPICS = [route_data_pb2.TopicConfig(topic="T")]


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (pb.RegisterBrokerRequest(topic_configs=TOPICS), "full"),
        (pb.RegisterBrokerRequest(), "full"),
        (pb.RegisterBrokerRequest(base_version=BASE, topic_configs=TOPICS), "increment"),
        (pb.RegisterBrokerRequest(base_version=BASE), "refresh"),
    ],
)
def test_the_kind_of_a_registration_is_what_it_carries(request_: pb.RegisterBrokerRequest, kind: str) -> None:
    assert kind_of(request_) == kind


def test_a_registration_is_counted_with_its_outcome_and_as_refused_if_it_raises() -> None:
    tally = RegistrationCounter()
    with tally.counting("full") as outcome:
        outcome.result = "changed"
    with pytest.raises(ValueError, match="no"), tally.counting("full"):
        raise ValueError("no")
    assert +tally.counts == {("full", "changed"): 1, ("full", "refused"): 1}


def test_a_duration_is_in_its_bucket_and_all_above() -> None:
    tally = DurationCounter((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 9.0):
        tally.add(seconds)
    assert tally.buckets() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert tally.total == 12.0


def told(calls: DiagnosticsCalls) -> GetDiagnosticsResponse:
    return asyncio.run(calls.GetDiagnostics(GetDiagnosticsRequest(), CONTEXT))


def test_diagnostics_tell_tasks_delays_and_refused_registrations() -> None:
    clock = VirtualClock()
    detector = StallDetector(clock.monotonic, lambda _: None, 10.0)
    tally = RegistrationCounter(clock.monotonic)
    calls = DiagnosticsCalls(detector, tally)
    detector.begin()
    clock.advance(TICK_SECONDS + 0.5)
    expected = GetDiagnosticsResponse(task_count=1, loop_lag_millis=500.0)
    assert told(calls) == expected
    tally.count("increment", "refused")
    assert told(calls) == expected, "an agent repeats it in full"
    tally.count("full", "refused", Refused(Reason.CHANNEL_GONE, "a lost channel"))
    assert told(calls) == expected, "an agent opens another channel"
    tally.count("full", "refused")
    tally.skipped(1)
    clock.advance(2.0)
    assert (told(calls).refused_ago_millis, told(calls).skipped_ago_millis) == (2_000, 2_000)


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
