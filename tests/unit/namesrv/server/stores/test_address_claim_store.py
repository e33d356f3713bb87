"""AddressClaimStore: claims on disk soon after they come, and what a disk that refuses or hangs costs."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

from structlog.testing import capture_logs

from namesrv.app.address_claim_store import AddressClaimStore
from namesrv.core.address_claims import AddressClaim, AddressClaims
from namesrv.core.model import BrokerKey, LiveKey
from namesrv.core.slices import run_sync
from namesrv.storage.address_claims_file import AddressClaimsFile
from tests.support.core_fleet import CLUSTER
from tests.support.fakes.held_disk import HeldDisk, until
from tests.support.virtual_clock import VirtualClock

DAY = 86_400.0
MOMENT = 0.01
"""A deadline that passes."""


class World(HeldDisk):
    """Claims, and a store of them on a disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.claims = AddressClaims(VirtualClock())
        self.store = AddressClaimStore(self.claims, AddressClaimsFile(folder, self.write), DAY)
        self.writes = 0

    def write(self, file: Path, content: bytes) -> None:
        self.writes += 1
        super().write(file, content)

    def claim(self, number: int) -> None:
        now = self.claims._clock.wall_millis()
        key, broker = LiveKey(CLUSTER, f"host-{number}:1"), BrokerKey(CLUSTER, f"broker-{number}")
        self.claims.load([AddressClaim(key, broker, 0, now, now + 1_000)], DAY)

    @property
    def on_disk(self) -> list[str]:
        return [claim.broker.broker_name for claim in AddressClaimsFile(self.folder).load()]

    def run(self, steps: Callable[[], Awaitable[None]]) -> None:
        async def opened_and_closed() -> None:
            try:
                await steps()
            finally:
                self.lets.set()
                await self.store.close(20)

        asyncio.run(opened_and_closed())
        for thread in threading.enumerate():
            if thread.name.startswith("address-claims-file"):
                thread.join(20)
                assert not thread.is_alive()


def test_a_claim_is_on_disk_after_the_next_look_and_in_force_in_the_next_process(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def steps() -> None:
        world.claim(1)
        await world.store.write_if_changed(20)
        assert world.on_disk == ["broker-1"]
        writes = world.writes
        await world.store.write_if_changed(20)
        assert world.writes == writes

    world.run(steps)
    assert run_sync(World(tmp_path).claims.in_force()) == run_sync(world.claims.in_force())


def test_a_disk_that_refuses_is_told_of_once_and_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def steps() -> None:
        world.claim(1)
        world.problem = OSError(errno.ENOSPC, "No space left on device")
        with capture_logs() as logs:
            await world.store.write_if_changed(20)
            await world.store.write_if_changed(20)
        assert [line["problem"] for line in logs] == ["No space left on device"]
        assert world.store.problem == "No space left on device"
        world.problem = None
        await world.store.write_if_changed(20)
        assert world.on_disk == ["broker-1"]
        assert world.store.problem is None

    world.run(steps)


def test_a_disk_that_hangs_is_given_up_and_gets_no_other_write_before_it_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def steps() -> None:
        world.claim(1)
        world.lets.clear()
        for number in range(2, 5):
            await world.store.write_if_changed(MOMENT)
            assert world.store.problem == "the disk took longer than 0.01 s"
            world.claim(number)
        await until(world.busy)
        assert world.store._thread._calls.empty(), "nothing waits behind the write that hangs"
        world.lets.set()
        await world.store.write_if_changed(20)
        assert world.on_disk == ["broker-1", "broker-2", "broker-3", "broker-4"]

    world.run(steps)
