"""Several name servers together, and who waits for news."""

from __future__ import annotations

import asyncio

import grpc

from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import Calls
from nsctl.console.observer import Fleet
from tests.support.fakes.observed_name_server import FakeNameServer
from tests.support.timing import console_timing
from tests.support.virtual_clock import VirtualClock


def test_whoever_waits_learns_of_the_latest_version_and_not_of_each() -> None:
    async def run() -> None:
        time = VirtualClock(0.0)
        server = FakeNameServer()
        fleet = Fleet([server], console_timing(time))
        waiting = [asyncio.create_task(fleet.later_than(0)) for _ in range(3)]
        await asyncio.sleep(0)
        (observer,) = fleet.observers
        for _ in range(4):
            server.revision += 1
            await observer.observe()
        assert await asyncio.gather(*waiting) == [4, 4, 4]
        assert await fleet.later_than(2) == 4

    asyncio.run(run())


def test_one_that_did_not_answer_is_not_asked_again_by_viewers() -> None:
    async def run() -> None:
        good, bad = FakeNameServer(), FakeNameServer("127.0.0.1:9877")
        bad.fail(grpc.StatusCode.UNAVAILABLE, "GetNamesrvStatus")
        fleet = Fleet([good, bad], console_timing(VirtualClock(0.0)))
        asked: list[str] = []

        async def ask(server: Calls) -> str:
            asked.append(str(server.endpoint))
            return "answer"

        await fleet.each(ask)
        assert asked == ["127.0.0.1:9876", "127.0.0.1:9877"]  # nobody knows yet
        for observer in fleet.observers:
            await observer.observe()
        asked.clear()
        answer, failure = await fleet.each(ask)
        assert (asked, answer) == (["127.0.0.1:9876"], "answer")
        assert isinstance(failure, CallError)
        assert failure.unreachable

    asyncio.run(run())
