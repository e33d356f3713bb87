"""Registrations are read whole before they stand in line, within bounds, and lookups go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.app.channels import ChannelStreams
from namesrv.app.quotas import FairShares
from namesrv.app.stall_detector import StallDetector
from namesrv.app.writer import TableWriter
from namesrv.core.errors import InvalidField, Overloaded
from namesrv.core.model import BrokerKey, RemovalReason
from namesrv.core.slices import Sliced
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.registration import READ_SLICE, RegistrationParts, RegistrationReader, RegistrationServicer
from tests.support.core_fleet import Fleet
from tests.support.registrations import identity, registration


class CallFromNowhere:
    """A call's context, as far as these calls ask for it."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


CONTEXT = cast("Context", CallFromNowhere())
LARGE = [f"T{number}" for number in range(3 * READ_SLICE)]


class NameServer:
    """A servicer whose writer can be kept busy."""

    def __init__(self, fleet: Fleet) -> None:
        self.manager = fleet.manager
        self.writer = TableWriter()
        detector = StallDetector(fleet.clock.monotonic, fleet.manager.grant_more_time, 10.0)
        channels = ChannelStreams(fleet.manager, self.writer, detector)
        parts = RegistrationParts(fleet.manager.channels, fleet.clock.monotonic)
        self._servicer = RegistrationServicer(fleet.manager, self.writer, channels, parts, 120_000)

    async def register(self, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerResponse:
        return await self._servicer.RegisterBroker(request, CONTEXT)

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Nobody has a turn for as long as the context lasts."""
        ended: list[bool] = []

        def change() -> Sliced[None]:
            while not ended:
                yield

        task = asyncio.create_task(self.writer.apply(change()))
        try:
            await asyncio.sleep(0)
            yield
        finally:
            ended.append(True)
            await task


@pytest.fixture
def reader(fleet: Fleet) -> RegistrationReader:
    parts = RegistrationParts(fleet.manager.channels, fleet.clock.monotonic)
    shares = FairShares.of(registered_topics=4)
    return RegistrationReader(fleet.manager, TableWriter(), parts, shares.registered_topics)


@pytest.mark.parametrize("topics", [["not a name"], [*LARGE, "not a name"]])
def test_a_bad_registration_is_refused_while_others_wait_for_their_turn(fleet: Fleet, topics: list[str]) -> None:
    async def run() -> None:
        namesrv = NameServer(fleet)
        async with namesrv.busy():
            with pytest.raises(InvalidField, match=rf"topic_configs\[{len(topics) - 1}\].topic_name"):
                await namesrv.register(registration(topics))
        assert fleet.manager.revision == 0

    asyncio.run(run())


def test_topics_of_a_version_that_is_held_are_not_read(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        namesrv = NameServer(fleet)
        await namesrv.register(registration(LARGE))
        with monkeypatch.context() as patch:
            patch.delattr("namesrv.grpc_api.registration.read_topics")
            assert not (await namesrv.register(registration(LARGE))).changed

    asyncio.run(run())


def test_a_large_registration_of_a_version_that_is_held_does_not_wait_for_one_that_is_read(fleet: Fleet) -> None:
    async def run() -> None:
        namesrv = NameServer(fleet)
        await namesrv.register(registration(LARGE))
        other = registration(LARGE, identity("127.0.0.2:10911", name="other"))
        being_read = asyncio.create_task(namesrv.register(other))
        await asyncio.sleep(0)
        unchanged = asyncio.create_task(namesrv.register(registration(LARGE)))
        await asyncio.wait({being_read, unchanged}, return_when=asyncio.FIRST_COMPLETED)
        assert unchanged.done()
        assert not being_read.done()
        await being_read

    asyncio.run(run())


def test_topics_that_were_not_read_are_if_the_broker_has_left_when_its_turn_comes(fleet: Fleet) -> None:
    async def run() -> None:
        namesrv = NameServer(fleet)
        request = registration(["T1"])
        await namesrv.register(request)
        broker = BrokerKey(request.broker.cluster_name, request.broker.broker_name)
        async with namesrv.busy():
            leaving = namesrv.manager.unregister_broker(broker, request.broker.broker_addr, RemovalReason.UNREGISTERED)
            left = asyncio.create_task(namesrv.writer.apply(leaving))
            await asyncio.sleep(0)
            registered = asyncio.create_task(namesrv.register(request))
            await asyncio.sleep(0)
        assert await left
        assert (await registered).changed
        assert fleet.topics >= {"T1"}

    asyncio.run(run())


def test_a_small_registration_is_read_while_a_large_one_is(fleet: Fleet, reader: RegistrationReader) -> None:
    async def run() -> None:
        large = asyncio.create_task(reader.read(registration(LARGE)))
        await asyncio.sleep(0)
        small = asyncio.create_task(reader.read(registration(["T1"])))
        await asyncio.sleep(0)
        assert small.done()
        assert not large.done()
        await large

    asyncio.run(run())


def test_large_registrations_are_read_one_after_the_other(fleet: Fleet, reader: RegistrationReader) -> None:
    async def run() -> None:
        ended: list[str] = []

        async def read(name: str, topics: list[str]) -> None:
            await reader.read(registration(topics, identity(name=name)))
            ended.append(name)

        await asyncio.gather(read("first", LARGE), read("second", LARGE[:READ_SLICE]))
        assert ended == ["first", "second"]

    asyncio.run(run())


def test_topics_under_way_are_bounded_until_they_are_answered(reader: RegistrationReader) -> None:
    with reader.room_for(registration(["a", "b", "c"])):
        with reader.room_for(registration(["d"])), reader.room_for(registration([])):
            pass
        with pytest.raises(Overloaded, match="topics of registrations under way: 5 is over the limit of 4 for all"):
            reader.room_for(registration(["d", "e"])).__enter__()
    with reader.room_for(registration(["a", "b", "c", "d"])):
        pass
