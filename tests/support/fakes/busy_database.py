"""A database that is busy or refuses commits, and waits for what threads do."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from namesrv.storage.database import DATABASE_FILE, Database

LONGEST_SECONDS = 20.0


@asynccontextmanager
async def busy(database: Database) -> AsyncIterator[threading.Event]:
    """Occupies the committing thread until the event is set or the context ends."""
    begun, lets = threading.Event(), threading.Event()

    def occupy(_: sqlite3.Connection) -> None:
        begun.set()
        assert lets.wait(LONGEST_SECONDS)

    occupying = asyncio.create_task(database.write(occupy))
    await until(begun)
    try:
        yield lets
    finally:
        lets.set()
        await occupying


@contextmanager
def held_by_another(folder: Path) -> Iterator[sqlite3.Connection]:
    """Another program has begun to write, such as a shell of SQLite."""
    with closing(sqlite3.connect(folder / DATABASE_FILE, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


@asynccontextmanager
async def refusing(database: Database) -> AsyncIterator[Callable[[], object]]:
    """Locks the file as another program would, and has commits not wait for the lock.

    The lock ends with the context, or when the callable is called.
    """
    await database.write(lambda connection: connection.execute("PRAGMA busy_timeout = 0"))
    with held_by_another(database.path.parent) as other:
        yield other.rollback


async def until(event: threading.Event) -> None:
    """Waits for what a thread does."""
    assert await asyncio.to_thread(event.wait, LONGEST_SECONDS)
