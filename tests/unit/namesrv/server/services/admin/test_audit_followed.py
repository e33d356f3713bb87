"""ListAuditEntries with a position, as programs that follow the journal call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv.app.worker import Worker
from namesrv.core.changes import Cause, ChangeLog, KvPut
from namesrv.core.errors import Reason
from namesrv.core.journal import JournalEntry, JournalQuery
from namesrv.grpc_api.admin import AuditCalls
from namesrv.grpc_api.handlers import Context
from namesrv.storage.database import Database
from namesrv.storage.journal import Journal
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses

CONTEXT = cast("Context", None)
"""The call does not ask for it."""
KEPT = 3
"""Changes that are in memory; those before are on disk only."""
FORMER = "0-former"


class CountedJournal(Journal):
    """Counts what is read from the disk."""

    reads = 0

    async def read(self, query: JournalQuery) -> list[JournalEntry]:
        self.reads += 1
        return await super().read(query)


class Followed:
    """Two changes of a former epoch and five of this one. Memory has the last three."""

    def __init__(self, folder: Path) -> None:
        self.database = Database(folder)
        self.state = Fleet().state
        self.epoch = self.state.identity.epoch
        self.journal = CountedJournal(self.database, self.epoch, 10**6)
        self.calls = AuditCalls(self.state, self.journal, Worker("reader"))

    async def fill(self) -> None:
        former = Journal(self.database, FORMER, 10**6)
        for journal, count in ((former, 2), (self.journal, 5)):
            log = self.state.change_log = ChangeLog(KEPT)
            log.listen(journal.on_change)
            for _ in range(count):
                log.append(1_000, Cause("PutKvConfig"), (KvPut("ns", "key", "value"),))
            await journal.write_last()

    async def after(self, epoch: str, revision: int, **request: Any) -> list[tuple[str, int]]:
        asked = pb.ListAuditEntriesRequest(after_epoch=epoch, after_revision=revision, **request)
        answer = await self.calls.ListAuditEntries(asked, CONTEXT)
        return [(entry.epoch, entry.revision) for entry in answer.entries]


@asynccontextmanager
async def followed(folder: Path) -> AsyncIterator[Followed]:
    journal = Followed(folder)
    await journal.fill()
    yield journal
    await journal.database.close(5.0)


def run(folder: Path, work: Callable[[Followed], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with followed(folder) as journal:
            await work(journal)

    asyncio.run(main())


def test_only_entries_after_a_place_are_listed_in_any_epoch(tmp_path: Path) -> None:
    async def work(journal: Followed) -> None:
        now = journal.epoch
        assert now > FORMER
        every = [*((now, revision) for revision in (5, 4, 3, 2, 1)), (FORMER, 2), (FORMER, 1)]
        for count, (epoch, revision) in enumerate(every):
            assert await journal.after(epoch, revision) == every[:count]
        assert await journal.after("", 0) == every
        assert await journal.after(FORMER, 9) == every[:5]
        assert await journal.after(now, 9) == []
        assert await journal.after("9-later", 0) == []

    run(tmp_path, work)


def test_what_memory_holds_is_not_looked_for_on_disk(tmp_path: Path) -> None:
    async def work(journal: Followed) -> None:
        for revision, reads in ((5, 0), (3, 0), (2, 0), (1, 1)):
            journal.journal.reads = 0
            await journal.after(journal.epoch, revision)
            assert journal.journal.reads == reads, revision

    run(tmp_path, work)


def test_pages_of_new_entries_end_where_the_caller_was(tmp_path: Path) -> None:
    async def work(journal: Followed) -> None:
        request = pb.ListAuditEntriesRequest(after_epoch=FORMER, after_revision=1, page_size=2)
        found = []
        while True:
            answer = await journal.calls.ListAuditEntries(request, CONTEXT)
            found += [entry.revision for entry in answer.entries]
            if not answer.next_page_token:
                break
            request.page_token = answer.next_page_token
        assert found == [5, 4, 3, 2, 1, 2]

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"after_epoch": "1-a"}, "after_revision"),
        ({"after_revision": 1}, "after_epoch"),
        ({"after_epoch": "1-a", "after_revision": -1}, "after_revision"),
    ],
)
def test_half_a_place_is_refused_by_the_field_that_is_wrong(given: dict[str, Any], field: str) -> None:
    calls = AuditCalls(Fleet().state, None, Worker("reader"))
    with refuses(Reason.INVALID_FIELD) as caught:
        asyncio.run(calls.ListAuditEntries(pb.ListAuditEntriesRequest(**given), CONTEXT))
    assert caught.value.violations[0].field == field
