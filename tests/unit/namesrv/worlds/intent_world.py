"""A name server with a disk that can be held up, whose operators decide."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from namesrv.app.intent_store import (
    IntentChange,
    IntentStore,
)
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause
from namesrv.core.model import BrokerKey, Intent, IntentKind, IntentTable
from namesrv.storage.intents_file import IntentsFile
from tests.support.core_fleet import CLUSTER, Fleet
from tests.support.fakes.held_disk import HeldDisk

GROUP = BrokerKey(CLUSTER, "broker-a")


CAUSE = Cause("WipeWritePermOfBroker", "ipv4:127.0.0.1:1", "because")


WIPE = Intent(IntentKind.WIPE_WRITE_PERM, GROUP, "ipv4:127.0.0.1:1", 1, "because")


def put(intent: Intent) -> IntentChange:
    return lambda table: table.with_intent(intent)


class World(HeldDisk):
    """A name server with one broker, a data directory, and a disk that writes when it is let and fails if told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.fleet = Fleet()
        self.manager = self.fleet.manager

    def store(self, writer: TableWriter | None = None, file: IntentsFile | None = None) -> IntentStore:
        file = file or IntentsFile(self.folder, self.write)
        return IntentStore(self.manager, writer or TableWriter(), file, self.fleet.clock.wall_millis, max_waiting=2)

    @property
    def on_disk(self) -> IntentTable:
        return IntentsFile(self.folder).load()

    @property
    def perm(self) -> int:
        route = self.fleet.route()
        assert route is not None
        return route.queue_datas[0].perm

    def run(self, steps: Callable[[IntentStore], Awaitable[None]], writer: TableWriter | None = None) -> None:
        """Runs steps on a store, and closes it as a shutdown does."""

        async def opened_and_closed() -> None:
            store = self.store(writer)
            self.fleet.register()
            try:
                await steps(store)
            finally:
                self.manager.frozen = True
                await store.close(20)

        asyncio.run(opened_and_closed())
        assert self.manager.intents == self.on_disk
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("intents")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.lets.set()  # or the writer thread would outlive a test that failed
