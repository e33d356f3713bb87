"""Ends of channels that are no broker's death: handed over, closed by us, or lost while we did not run ourselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from structlog.testing import capture_logs

from namesrv.app.channels import DOUBTED_SECONDS, ChannelStreams, StallDetector
from namesrv.app.writer import TableWriter
from namesrv.core.errors import Reason
from namesrv.core.model import Doubt, RemovalReason
from namesrv.core.removals import on_channel_destroy
from namesrv.grpc_api.registration import RegistrationServicer
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import A, B, Fleet
from tests.support.refusals import refuses
from tests.support.state_changes import apply_all_now

GRACE = 30.0
STALL = 300.0
JUDGED_SECONDS = 20.0
"""Time until the end of a channel must have been judged."""


class Calls:
    """What ends channels and judges that."""

    def __init__(self, fleet: Fleet, max_waiting_writers: int = 10) -> None:
        self.stall_detector = StallDetector(fleet.clock.monotonic, fleet.state.grant_more_time, 10.0)
        writer = TableWriter(max_waiting_writers)
        self.channels = ChannelStreams(fleet.state, writer, self.stall_detector)
        self._registration = RegistrationServicer(fleet.state, writer, self.channels, 120_000)

    async def hand_over(self, channel_id: str) -> pb.HandOverChannelResponse:
        return await self._registration.HandOverChannel(pb.HandOverChannelRequest(channel_id=channel_id), CONTEXT)


@pytest.fixture
def calls(fleet: Fleet) -> Calls:
    return Calls(fleet)


@asynccontextmanager
async def judged(calls: Calls, doubt: Doubt | None = None) -> AsyncIterator[tuple[str, list[str]]]:
    """A channel that ends with the context, and what the log says of its end."""
    said: list[str] = []
    judge = asyncio.create_task(calls.channels.remove_brokers_of_ended())
    with capture_logs() as logs:
        async with calls.channels.open("test", doubt=lambda: doubt) as (channel_id, _):
            yield channel_id, said
        async with asyncio.timeout(JUDGED_SECONDS):
            while not said:
                await asyncio.sleep(0)
                told = [log for log in logs if log["log_level"] != "debug"]
                said.extend(str(log.get("why") or log.get("reason")) for log in told)
    judge.cancel()


@pytest.mark.parametrize("max_waiting_writers", [10, 0])
async def test_the_end_of_a_channel_removes_its_broker_however_many_wait(
    fleet: Fleet, max_waiting_writers: int
) -> None:
    async with judged(Calls(fleet, max_waiting_writers)) as (channel_id, said):
        fleet.register(channel_id=channel_id)
    assert said[-1] == "CHANNEL_CLOSED"
    assert fleet.route() is None


async def test_a_channel_that_is_handed_over_leaves_its_brokers_the_grace(fleet: Fleet, calls: Calls) -> None:
    async with judged(calls) as (channel_id, said):
        fleet.register(A, channel_id=channel_id)
        fleet.register(B, name="broker-b", channel_id=channel_id)
        answer = await calls.hand_over(channel_id)
        assert (answer.channel_grace_millis, answer.broker_count) == (30_000, 2)
    assert said[-1] == "handed_over"
    fleet.clock.advance(GRACE)
    fleet.register(B, name="broker-b")
    assert fleet.scan() == []
    fleet.clock.advance(0.001)
    assert [(gone.live.broker_addr, gone.reason) for gone in fleet.scan()] == [(A, RemovalReason.EXPIRED)]


async def test_the_process_that_takes_over_is_not_touched_by_the_end_of_the_old_channel(
    fleet: Fleet, calls: Calls
) -> None:
    async with calls.channels.open("old") as (old, _), calls.channels.open("new") as (new, _):
        fleet.register(A, channel_id=old)
        await calls.hand_over(old)
        fleet.register(A, channel_id=new)
        assert fleet.end_channel(old) == []
        assert fleet.state.liveness.bound(new)
    fleet.clock.advance(GRACE + 0.001)
    assert fleet.scan() == []
    assert fleet.addrs() == {0: A}


@pytest.mark.parametrize("channel_id", ["ended", "never-opened"])
async def test_only_an_open_channel_can_be_handed_over(fleet: Fleet, calls: Calls, channel_id: str) -> None:
    if channel_id == "ended":
        channel_id = fleet.state.open_channel()
        fleet.end_channel(channel_id)
    with refuses(Reason.CHANNEL_GONE):
        await calls.hand_over(channel_id)


INCONCLUSIVE: dict[str, tuple[Doubt, Doubt | None, Callable[[Fleet, Calls, str], object]]] = {
    "we close it": (
        Doubt.CLOSED_HERE,
        None,
        lambda _, calls, channel_id: calls.channels.close(channel_id, pb.ChannelClosing.REASON_SLOW_READER),
    ),
    "the engine closes it": (Doubt.CLOSED_HERE, Doubt.CLOSED_HERE, lambda *_: None),
    "the engine has stalled": (Doubt.OWN_STALL, Doubt.OWN_STALL, lambda *_: None),
    "we have stalled": (Doubt.OWN_STALL, None, lambda fleet, *_: fleet.clock.advance(STALL)),
}
"""The end of a channel that says nothing about its brokers: our doubt, that of the engine, and what happens before."""


@pytest.mark.parametrize(("why", "of_engine", "happens"), INCONCLUSIVE.values(), ids=INCONCLUSIVE)
async def test_an_inconclusive_end_leaves_brokers_time_to_register_again(
    fleet: Fleet, calls: Calls, why: Doubt, of_engine: Doubt | None, happens: Callable[[Fleet, Calls, str], object]
) -> None:
    async with judged(calls, of_engine) as (channel_id, said):
        fleet.register(A, channel_id=channel_id)
        happens(fleet, calls, channel_id)
    assert said[-1] == why.name.lower()
    assert fleet.addrs() == {0: A}
    fleet.clock.advance(DOUBTED_SECONDS)
    assert fleet.scan() == []
    fleet.clock.advance(0.001)
    assert len(fleet.scan()) == 1


def test_a_stall_of_our_own_of_five_minutes_removes_nobody(fleet: Fleet, calls: Calls) -> None:
    fleet.register(A)
    fleet.register(B, name="broker-b", timeout_seconds=1.0)
    fleet.clock.advance(STALL)
    calls.stall_detector.check()  # what a scan does first
    assert fleet.scan() == []
    fleet.clock.advance(1.5)
    assert [gone.live.broker_addr for gone in fleet.scan()] == [B]
    fleet.clock.advance(118.0)
    assert fleet.scan() == []
    fleet.clock.advance(1.0)
    assert [gone.live.broker_addr for gone in fleet.scan()] == [A]


def test_a_broker_of_two_channels_that_end_together_is_removed_once() -> None:
    """It registered over the second one when the first had ended and was not judged yet."""
    fleet = Fleet()
    first, second = fleet.state.open_channel(), fleet.state.open_channel()
    fleet.register(A, channel_id=first)
    fleet.state.liveness.end_channel(first)
    fleet.register(A, channel_id=second)
    fleet.state.liveness.end_channel(second)
    gone = apply_all_now(on_channel_destroy(fleet.state, [first, second]))
    assert [removed.live.broker_addr for removed in gone] == [A]


async def test_a_channel_handed_over_before_we_close_it_leaves_the_grace(fleet: Fleet, calls: Calls) -> None:
    async with judged(calls) as (channel_id, said):
        fleet.register(A, channel_id=channel_id)
        await calls.hand_over(channel_id)
        calls.channels.close(channel_id, pb.ChannelClosing.REASON_SLOW_READER)
    assert said[-1] == "handed_over"
    fleet.clock.advance(GRACE)
    assert fleet.scan() == []
    fleet.clock.advance(0.001)
    assert len(fleet.scan()) == 1


def test_after_a_stall_of_our_own_no_channel_is_idle(fleet: Fleet, calls: Calls) -> None:
    fleet.state.open_channel()
    fleet.clock.advance(STALL)
    calls.stall_detector.check()
    assert fleet.state.liveness.idle_channels() == []
