"""NamesrvChannel: its pauses, and what follows a defect."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any, cast

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb

from broker_agent.channel import LONGEST_WAIT_SECONDS, ConnectionOptions, NamesrvChannel, Pace, Reopening
from broker_agent.name_server_status import NameServerStatus
from broker_agent.timing import Timing
from broker_agent.topics import slave_synchronize
from namesrv_common.endpoints import Endpoint
from tests.support.virtual_clock import VirtualClock

ENDPOINT = Endpoint("127.0.0.1", 9876)
OPENED = pb.OpenChannelResponse(opened=pb.ChannelOpened(channel_id="1"))


class Stream(list[pb.OpenChannelResponse]):
    def cancel(self) -> None:
        return


class Stub:
    """A name server whose second channel has no defect."""

    def __init__(self, *, refuses_first: bool) -> None:
        self._refuses = refuses_first
        self._opened = 0
        self.again = threading.Event()

    def OpenChannel(self, _request: pb.OpenChannelRequest, metadata: object) -> Stream:  # noqa: N802 - the contract's name
        self._opened += 1
        if self._opened == 2:
            self.again.set()
        if self._refuses and self._opened == 1:
            raise ValueError("Cannot invoke RPC on closed channel!")
        return Stream([OPENED])


class Status(NameServerStatus):
    """A status that fails at events."""

    def event(self, *_: object) -> None:
        raise KeyError


@pytest.mark.parametrize("refuses_first", [False, True])
def test_a_defect_of_a_channel_does_not_end_its_thread(refuses_first: bool) -> None:
    stub, timing = Stub(refuses_first=refuses_first), Timing()
    channel = NamesrvChannel(
        ENDPOINT,
        cast(Any, stub),
        "test",
        Status(ENDPOINT, timing),
        lambda: None,
        reopening=Reopening(LONGEST_WAIT_SECONDS, timing),
        timing=timing,
    )
    channel.open()
    try:
        assert stub.again.wait(20)
    finally:
        channel.close()
    assert channel.id is None


def test_events_beyond_those_of_a_second_wait_for_its_end() -> None:
    clock = VirtualClock()
    pace = Pace(2, clock.monotonic)
    assert [pace.pause(), pace.pause()] == [0.0, 0.0]
    clock.advance(0.25)
    assert pace.pause() == 0.75
    clock.advance(0.75)
    assert [pace.pause(), pace.pause(), pace.pause()] == [0.0, 0.0, 1.0]


def reopening(seed: int = 1) -> Reopening:
    return Reopening(LONGEST_WAIT_SECONDS, Timing(rng=random.Random(seed)))


def came_back(seed: int, away_seconds: float, *, said_so: bool) -> float:
    """When one agent has its channel again after a name server went away at 0."""
    waits = reopening(seed)
    now = waits.next_wait(shutting_down=said_so)
    while now < away_seconds:
        now += waits.next_wait(shutting_down=False)
    return now


def test_a_channel_that_breaks_once_is_reopened_within_a_fifth_of_a_second() -> None:
    assert all(0.1 <= reopening(seed).next_wait(shutting_down=False) <= 0.2 for seed in range(100))


def test_the_wait_doubles_up_to_5_s_until_a_registration_succeeds() -> None:
    waits = [reopening(seed) for seed in range(300)]
    for longest in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        seen = [wait.next_wait(shutting_down=False) for wait in waits]
        assert 0.9 * longest < max(seen) <= longest
    for wait in waits:
        wait.succeeded()
    assert max(wait.next_wait(shutting_down=False) for wait in waits) <= 0.2


@pytest.mark.parametrize("away_seconds", [2.0, 5.0, 10.0, 60.0])
@pytest.mark.parametrize("said_so", [True, False])
def test_a_thousand_agents_come_back_spread_over_seconds(away_seconds: float, said_so: bool) -> None:
    times = [came_back(seed, away_seconds, said_so=said_so) for seed in range(1_000)]
    in_each_second = Counter(int(time - away_seconds) for time in times)
    assert max(times) <= away_seconds + 5.0
    assert max(in_each_second.values()) < 600


def test_agents_come_back_spread_after_an_announced_restart() -> None:
    in_each_second = Counter(int(came_back(seed, 0.0, said_so=True)) for seed in range(1_000))
    assert max(in_each_second.values()) < 300


def test_grpc_repeats_no_call_of_the_agent_by_itself() -> None:
    for options in (ConnectionOptions().as_grpc(), slave_synchronize._CONNECTION.options):
        assert ("grpc.enable_retries", 0) in options
