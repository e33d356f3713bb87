"""AddressClaimStore: claims are durable after the next look, also if the disk refused them before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from namesrv.app.address_claim_store import WRITE_INTERVAL_SECONDS, AddressClaimStore
from namesrv.core.address_claims import AddressClaim, AddressClaims
from namesrv.core.errors import NotDurable
from namesrv.core.model import BrokerKey, LiveKey
from namesrv.storage.database import Database
from namesrv.storage.tables import ADDRESS_CLAIMS
from tests.support.core_fleet import CLUSTER
from tests.support.fakes.busy_database import busy, refusing
from tests.support.virtual_clock import VirtualClock

DAY = 86_400.0


class World:
    """Claims, and a store of them in a database. Must be made inside an event loop."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.claims = AddressClaims(self.clock)
        self.database = Database(folder)
        self.store = AddressClaimStore(self.claims, self.database, DAY)

    def claim(self, number: int) -> None:
        now = self.clock.wall_millis()
        key, broker = LiveKey(CLUSTER, f"host-{number}:1"), BrokerKey(CLUSTER, f"broker-{number}")
        self.claims.load([AddressClaim(key, broker, 0, now, now + 1_000)], DAY)

    @property
    def stored(self) -> list[str]:
        return [claim.broker.broker_name for claim in self.database.load(ADDRESS_CLAIMS)]


def run(folder: Path, steps: Callable[[World], Awaitable[None]]) -> None:
    async def opened_and_closed() -> None:
        world = World(folder)
        try:
            await steps(world)
        finally:
            await world.database.close(20)

    asyncio.run(opened_and_closed())


def test_a_claim_is_durable_after_a_look_and_in_force_in_the_next_life(tmp_path: Path) -> None:
    before: list[AddressClaim] = []

    async def steps(world: World) -> None:
        world.claim(1)
        await world.store.write_if_changed()
        async with refusing(world.database):
            await world.store.write_if_changed()  # nothing has changed, so nothing is written
        before.extend(world.claims.in_force())

    async def in_next_life(world: World) -> None:
        assert world.claims.in_force() == before
        assert len(before) == 1
        async with refusing(world.database):
            await world.store.write_if_changed()

    run(tmp_path, steps)
    run(tmp_path, in_next_life)


def test_a_claim_that_comes_during_a_write_is_durable_after_the_next_one(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.claim(1)
        async with busy(world.database):
            writing = asyncio.create_task(world.store.write_if_changed())
            while world.database._writer._calls.empty():  # noqa: ASYNC110 - nobody tells that a write waits
                await asyncio.sleep(0)
            world.claim(2)
        await writing
        assert world.stored == ["broker-1"]
        await world.store.write_if_changed()
        assert world.stored == ["broker-1", "broker-2"]

    run(tmp_path, steps)


def test_claims_that_the_disk_refuses_are_written_once_it_takes_them(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.claim(1)
        async with refusing(world.database) as mend:
            with pytest.raises(NotDurable):
                await world.store.write_if_changed()
            pauses: list[float] = []

            async def sleep(seconds: float) -> None:
                pauses.append(seconds)
                if len(pauses) == 3:
                    mend()
                if world.stored:
                    raise asyncio.CancelledError

            with pytest.raises(asyncio.CancelledError):
                await world.store.write_periodically(sleep)
        assert pauses == [WRITE_INTERVAL_SECONDS] * 4

    run(tmp_path, steps)
