"""DiagnosticsService: figures about the process."""

from __future__ import annotations

import asyncio

from namesrv_internal.v1.diagnostics_service_pb2 import GetDiagnosticsRequest, GetDiagnosticsResponse

from namesrv.app.counters import RegistrationCounter
from namesrv.app.stall_detector import TICK_SECONDS, StallDetector
from namesrv.core.errors import Reason, Refused
from namesrv.grpc_api.internal import COUNT_SECONDS, DiagnosticsCalls
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.virtual_clock import VirtualClock


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
