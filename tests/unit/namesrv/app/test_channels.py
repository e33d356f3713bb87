"""What channels are notified of: their group, and the order configuration. Stalls are nobody's silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Self

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.app import channels
from namesrv.app.channels import DELAYS_SECONDS, STALL_SECONDS, TICK_SECONDS, StallDetector
from namesrv.core.changes import Cause
from namesrv.core.model import ORDER_TOPIC_CONFIG, Behaviour
from namesrv.limits import MAX_CHANNEL_EVENTS
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.patience import TIMEOUT
from tests.support.virtual_clock import VirtualClock
from tests.unit.namesrv.servicers import channel_streams

C = "127.0.0.1:30911"
HA_OF = {A: "127.0.0.1:10912", B: "127.0.0.1:20912", C: "127.0.0.1:30912"}
CAUSE = Cause("test")


class Told:
    """A fleet whose brokers hold a channel each, and what these were told."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.fleet = Fleet(behaviour)
        self.streams = channel_streams(self.fleet)
        self._events: dict[str, tuple[str, asyncio.Queue[pb.OpenChannelResponse]]] = {}
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def channel(self, addr: str) -> str:
        """The channel of the broker at an address; opened if it has none."""
        if addr not in self._events:
            self._events[addr] = await self._opened.enter_async_context(self.streams.open(addr))
        return self._events[addr][0]

    async def register(self, addr: str, broker_id: int, *, acting: bool = True) -> None:
        self.fleet.register(
            addr,
            broker_id,
            ha=HA_OF[addr],
            enable_acting_master=acting,
            channel_id=await self.channel(addr),
        )

    async def next_event(self, addr: str) -> pb.OpenChannelResponse:
        async with asyncio.timeout(TIMEOUT):
            return await self._events[addr][1].get()

    def events(self, addr: str) -> list[pb.OpenChannelResponse]:
        """All that a channel was told and nobody has read yet."""
        events = self._events[addr][1]
        return [events.get_nowait() for _ in range(events.qsize())]

    def put_order_config(self, key: str, value: str, namespace: str = ORDER_TOPIC_CONFIG) -> None:
        table = self.fleet.state.kv_config.with_value(namespace, key, value)
        self.fleet.state.publish_kv_config(table, CAUSE)


def with_channels(**behaviour: bool) -> Told:
    return Told(Behaviour(support_acting_master=True, **behaviour))


def lowest(addr: str, broker_id: int, offline: str | None = None) -> pb.OpenChannelResponse:
    return pb.OpenChannelResponse(
        min_broker_id_changed=pb.MinBrokerIdChanged(
            cluster_name=CLUSTER,
            broker_name="broker-a",
            min_broker_id=broker_id,
            min_broker_addr=addr,
            offline_broker_addr=offline,
            ha_broker_addr=HA_OF[addr],
        )
    )


ORDER_CONFIG_CHANGED = pb.OpenChannelResponse(order_topic_config_changed=pb.OrderTopicConfigChanged())


# The lowest broker id


LOWEST_CHANGES = {
    "a master comes": (True, ((B, 1), (C, 2), (A, 0)), {B: [lowest(A, 0)], C: [lowest(A, 0)]}),
    "a master leaves": (True, ((A, 0), (B, 1), (C, 2), (A, None)), {B: [lowest(B, 1, A)], C: [lowest(B, 1, A)]}),
    "no slave may stand in": (False, ((A, 0), (B, 1), (A, None), (A, 0)), {B: [lowest(A, 0)]}),
    "a lone slave becomes master": (True, ((B, 1), (B, 0)), {B: [lowest(B, 0)]}),
    "a master becomes slave": (True, ((A, 0), (B, 1), (A, 2)), {A: [lowest(B, 1)], B: [lowest(B, 1)]}),
    "the lowest id stays": (True, ((A, 0), (A, 0), (B, 1), (C, 2), (C, None), (C, 0)), {}),
}
"""Whether a slave may stand in, the id that each broker gets in turn, None if it leaves, and the notices of each."""


@pytest.mark.parametrize(("acting", "steps", "notices"), LOWEST_CHANGES.values(), ids=LOWEST_CHANGES)
async def test_a_group_is_told_of_its_lowest_broker_when_another_one_is(
    acting: bool, steps: tuple[tuple[str, int | None], ...], notices: dict[str, list[pb.OpenChannelResponse]]
) -> None:
    async with with_channels(notify_min_broker_id_changed=True) as told:
        for addr, broker_id in steps:
            if broker_id is None:
                told.fleet.unregister(addr)
            else:
                await told.register(addr, broker_id, acting=acting)
        for addr in dict(steps):
            assert told.events(addr) == notices.get(addr, [])


async def test_a_holder_that_reads_nothing_is_closed_and_not_waited_for() -> None:
    async with with_channels(notify_min_broker_id_changed=True) as told:
        await told.register(B, 1)
        for _ in range(MAX_CHANNEL_EVENTS // 2 + 1):
            await told.register(A, 0)
            told.fleet.unregister(A)
        closing = pb.OpenChannelResponse(closing=pb.ChannelClosing(reason=pb.ChannelClosing.REASON_SLOW_READER))
        assert told.events(B)[-1] == closing


# The order configuration


@asynccontextmanager
async def telling(**behaviour: bool) -> AsyncIterator[Told]:
    """Notices follow one another as soon as the event loop has run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "ORDER_NOTICE_PAUSE_SECONDS", 0.0)
        async with with_channels(**behaviour) as told:
            task = asyncio.create_task(told.streams.notify_of_order_config())
            try:
                yield told
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def let_tell() -> None:
    """Lets a notice be sent if one is due: that takes two rounds of the event loop."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_every_channel_is_told_of_a_changed_order_configuration_once_for_many_keys() -> None:
    async with telling() as told:
        for addr in (A, B):
            await told.channel(addr)
        for key in ("T1", "T2", "T3"):
            told.put_order_config(key, "broker-a:4")
        assert [await told.next_event(addr) for addr in (A, B)] == [ORDER_CONFIG_CHANGED] * 2
        told.put_order_config("T1", "broker-a:8")
        assert [await told.next_event(addr) for addr in (A, B)] == [ORDER_CONFIG_CHANGED] * 2
        assert [told.events(addr) for addr in (A, B)] == [[], []]


async def test_values_that_stay_and_other_namespaces_are_not_told() -> None:
    async with telling() as told:
        await told.channel(A)
        told.put_order_config("T", "broker-a:4")
        assert await told.next_event(A) == ORDER_CONFIG_CHANGED
        told.put_order_config("T", "broker-a:4")
        told.put_order_config("T", "broker-a:4", namespace="another")
        await let_tell()
        assert told.events(A) == []
        told.put_order_config("T", "broker-a:8")
        assert await told.next_event(A) == ORDER_CONFIG_CHANGED


async def test_brokers_that_do_not_get_the_order_configuration_are_not_told_of_it() -> None:
    async with telling(return_order_topic_config_to_broker=False) as told:
        await told.channel(A)
        told.put_order_config("T", "broker-a:4")
        await let_tell()
        assert told.events(A) == []


# Stalls of the process, and clocks that step.


class Detector(StallDetector):
    """A detector with a clock of its own, and the stalls that it has told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.told: list[float] = []
        super().__init__(self.clock.monotonic, self.told.append, doubtful_seconds=10.0)


@pytest.fixture
def stalls() -> Detector:
    return Detector()


def test_ticks_in_time_and_small_delays_are_no_stall(stalls: Detector) -> None:
    for late in (0.0, 0.5, STALL_SECONDS):
        stalls.clock.advance(TICK_SECONDS + late)
        stalls.check()
    assert stalls.told == []
    assert not stalls.channel_ends_are_doubtful()


def test_a_start_that_takes_long_is_no_stall(stalls: Detector) -> None:
    stalls.clock.advance(TICK_SECONDS + 300.0)
    stalls.begin()
    assert not stalls.channel_ends_are_doubtful()
    assert (stalls.told, stalls.longest_delay()) == ([], 0.0)


async def test_a_stall_before_the_first_tick_counts_as_callers_may_have_come(stalls: Detector) -> None:
    stalls.begin()
    stalls.clock.advance(TICK_SECONDS + 300.0)
    watching = asyncio.create_task(stalls.watch())
    await asyncio.sleep(0)
    watching.cancel()
    assert stalls.longest_delay() == 300.0
    assert stalls.channel_ends_are_doubtful()
    assert stalls.told == [300.0]


def test_a_stall_is_told_once_and_channel_ends_are_doubtful_from_its_end_on(stalls: Detector) -> None:
    stalls.clock.advance(5.0)
    assert stalls.channel_ends_are_doubtful()
    assert stalls.told == [pytest.approx(5.0 - TICK_SECONDS)]
    for _ in range(39):
        stalls.clock.advance(TICK_SECONDS)
        assert stalls.channel_ends_are_doubtful()
    stalls.clock.advance(TICK_SECONDS)
    assert not stalls.channel_ends_are_doubtful()
    assert len(stalls.told) == 1


def test_delays_older_than_a_minute_are_forgotten_and_no_more_than_a_minute_of_them_is_kept(stalls: Detector) -> None:
    stalls.clock.advance(TICK_SECONDS + 0.5)
    assert stalls.longest_delay() == 0.5, "a tick that is overdue counts before it comes"
    stalls.tick()
    for _ in range(round(DELAYS_SECONDS / TICK_SECONDS)):
        assert stalls.longest_delay() == 0.5
        stalls.clock.advance(TICK_SECONDS)
        stalls.tick()
    assert stalls.longest_delay() == 0.0


def test_a_tick_during_a_look_at_the_delays_disturbs_nothing() -> None:
    clock = VirtualClock()

    class TimeDuringATick(float):
        """A time at which the event loop ticks while another thread, which serves metrics, compares it."""

        def __ge__(self, other: float) -> bool:
            detector.tick()
            return super().__ge__(other)

    detector = StallDetector(lambda: TimeDuringATick(clock.monotonic()), lambda _: None, doubtful_seconds=10.0)
    for _ in range(2):
        clock.advance(TICK_SECONDS + 0.5)
        detector.tick()
    assert detector.longest_delay() == pytest.approx(0.5)


HOUR = 3_600.0
EXPIRY = 120.0


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_nobody_expires_because_the_wall_clock_steps_and_everybody_in_time_who_is_silent(
    fleet: Fleet, step: float
) -> None:
    fleet.register(A)
    fleet.clock.wall_ahead += step
    assert fleet.scan() == []
    fleet.clock.advance(EXPIRY - 1)
    assert fleet.scan() == []
    fleet.clock.advance(2)
    assert [gone.live.broker_addr for gone in fleet.scan()] == [A]
