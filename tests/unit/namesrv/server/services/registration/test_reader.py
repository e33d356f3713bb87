"""Registrations are read whole before they stand in line, within bounds, and lookups continue in the meantime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.app.access import sharer_of
from namesrv.app.channels import ChannelStreams
from namesrv.app.quotas import FairShares
from namesrv.app.stall_detector import StallDetector
from namesrv.app.writer import INLINE_TOPICS, TableWriter
from namesrv.core.errors import Reason
from namesrv.core.model import BrokerKey, RemovalReason
from namesrv.core.removals import unregister_broker
from namesrv.grpc_api.registration import RegistrationServicer
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses
from tests.support.registrations import registration
from tests.support.state_changes import Held

LARGE = [f"T{number}" for number in range(3 * INLINE_TOPICS)]


class NameServer:
    """A servicer whose writer can be kept busy."""

    def __init__(self, fleet: Fleet, registered_topics: int = 1_000) -> None:
        self.state = fleet.state
        shares = FairShares(registered_topics=registered_topics)
        self.writer = TableWriter()
        detector = StallDetector(fleet.clock.monotonic, fleet.heartbeats.grant_more_time, 10.0)
        channels = ChannelStreams(fleet.state, self.writer, detector)
        self._servicer = RegistrationServicer(
            fleet.state, self.writer, channels, 120_000, registered_topics=shares.registered_topics
        )

    async def register(self, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerResponse:
        return await self._servicer.RegisterBroker(request, CONTEXT)

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Nobody has a turn for as long as the context lasts."""
        held = Held(self.state)
        task = asyncio.create_task(self.writer.apply_own(held))
        await held.begun()
        try:
            yield
        finally:
            held.let_go()
            await task


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)


async def test_a_bad_registration_is_refused_while_others_wait_for_their_turn(fleet: Fleet) -> None:

    namesrv = NameServer(fleet)
    async with namesrv.busy():
        with refuses(Reason.INVALID_FIELD, match=r"topic_configs\[0\].topic"):
            await namesrv.register(registration(["not\ta name"]))
    assert fleet.state.revision == 0


async def test_a_large_bad_registration_never_stands_in_line(fleet: Fleet) -> None:

    namesrv = NameServer(fleet)
    async with namesrv.busy():
        bad = asyncio.create_task(namesrv.register(registration([*LARGE, "not\ta name"])))
        await asyncio.sleep(0)
        assert namesrv.writer.waiting == 1, "the change that keeps it busy"
    with refuses(Reason.INVALID_FIELD, match=rf"topic_configs\[{len(LARGE)}\].topic"):
        await bad
    assert fleet.state.revision == 0


async def test_topics_of_a_version_that_is_held_are_not_read(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:

    namesrv = NameServer(fleet)
    await namesrv.register(registration(LARGE))
    with monkeypatch.context() as patch:
        patch.setattr("namesrv.grpc_api.registration.read_topics", lambda *_: pytest.fail("they were read"))
        assert not (await namesrv.register(registration(LARGE))).changed


async def test_small_registrations_and_held_ones_do_not_wait_for_the_thread(fleet: Fleet) -> None:

    namesrv = NameServer(fleet)
    await namesrv.register(registration(LARGE))
    go_on = threading.Event()
    working = asyncio.create_task(namesrv.writer.read(lambda: go_on.wait(20), "a"))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert not (await namesrv.register(registration(LARGE))).changed
        assert (await namesrv.register(registration(["T1"], counter=2))).changed
    go_on.set()
    await working


async def test_topics_are_read_after_all_if_the_broker_has_left_meanwhile(fleet: Fleet) -> None:

    namesrv = NameServer(fleet)
    request = registration(["T1"])
    await namesrv.register(request)
    broker = BrokerKey(request.broker.cluster_name, request.broker.broker_name)
    async with namesrv.busy():
        leaving = unregister_broker(fleet.state, broker, request.broker.broker_addr, RemovalReason.UNREGISTERED)
        left = asyncio.create_task(namesrv.writer.apply(leaving, sharer_of(CONTEXT).name))
        await until(lambda: namesrv.writer.waiting == 2)
        registered = asyncio.create_task(namesrv.register(request))
        await until(lambda: namesrv.writer.waiting == 3)
    assert await left
    assert (await registered).changed
    assert fleet.topics >= {"T1"}


async def test_topics_under_way_are_bounded_until_they_are_answered(fleet: Fleet) -> None:
    namesrv = NameServer(fleet, registered_topics=4)
    async with namesrv.busy():
        first = asyncio.create_task(namesrv.register(registration(["a", "b", "c"])))
        await until(lambda: namesrv.writer.waiting == 2)
        with refuses(Reason.OVERLOADED, match="topics of registrations under way: 5 is over the limit of 4 for all"):
            await namesrv.register(registration(["d", "e"]))
        other = asyncio.create_task(namesrv.register(registration(["d"])))
        await until(lambda: namesrv.writer.waiting == 3)
    await first
    await other
    await namesrv.register(registration(["a", "b", "c", "d"]))
