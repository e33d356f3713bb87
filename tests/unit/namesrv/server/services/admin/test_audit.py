"""ListAuditEntries: newest first, filtered, in pages that outlive changes and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.app.history import History
from namesrv.app.worker import Worker
from namesrv.core.changes import Cause, Change, KvChange, QueuesChange, Row
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import BrokerKey, QueueData
from namesrv.core.state import NamesrvIdentity, RouteState
from namesrv.grpc_api.admin import HistoryCalls
from namesrv.grpc_api.paging import token_after
from namesrv.storage.database import Database, MemoryDatabase
from namesrv.storage.journal import Journal
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses

CAUSE = Cause("RegisterBroker", "caller", "comment")
EPOCH = "000000000000001-00000000"
"""Of every fleet in a test."""


def history_calls(state: RouteState, journal: Journal) -> HistoryCalls:
    reader = Worker("reader")
    return HistoryCalls(state, History(state, journal, reader, 0), reader)


KV = KvChange(("ns", "key"), None, "value")


class Log:
    """A change log, the journal of its changes in memory, and the call that pages through it."""

    def __init__(self, max_entries: int = 1_000) -> None:
        self.state = Fleet().state
        self.log = self.state.change_log
        self.journal = Journal(MemoryDatabase(), EPOCH, 10**7, max_entries=max_entries)
        self.log.listen(self.journal.on_change)
        self.calls = history_calls(self.state, self.journal)

    def append(self, *rows: Row, at: int = 1_000) -> None:
        self.log.append(Change(CAUSE, rows or (KV,)), at)

    def page(self, request: pb.ListAuditEntriesRequest) -> pb.ListAuditEntriesResponse:
        asyncio.run(self.journal.write_last())
        return asyncio.run(self.calls.ListAuditEntries(request, CONTEXT))

    def revisions(self, request: pb.ListAuditEntriesRequest) -> list[int]:
        return [entry.revision for entry in self.page(request).entries]

    def refusal(self, request: pb.ListAuditEntriesRequest) -> Refused:
        with refuses(Reason.INVALID_FIELD) as caught:
            self.page(request)
        return caught.value


@pytest.fixture
def log() -> Log:
    return Log()


def token(revision: int, epoch: str = EPOCH) -> str:
    return token_after(pb.ListAuditEntriesRequest(), (epoch, revision))


def queues(broker_name: str, *topics: str) -> QueuesChange:
    broker = BrokerKey("DefaultCluster", broker_name)
    return QueuesChange(broker, None, dict.fromkeys(topics, QueueData(broker, 4, 4, 6, 0, b"", b"", b"")))


def test_an_entry_says_all_that_is_known_of_a_change(log: Log) -> None:
    log.append(queues("broker-a", "TopicA"), at=12_345)
    answer = log.page(pb.ListAuditEntriesRequest())
    assert answer.header == log.state.header()
    assert list(answer.entries) == [
        pb.AuditEntry(
            epoch=EPOCH,
            revision=1,
            applied_at_millis=12_345,
            caller="caller",
            cause="RegisterBroker",
            summary="broker-a of DefaultCluster: 1 topic put (TopicA)",
            comment="comment",
        )
    ]
    assert answer.next_page_token == ""


def test_an_entry_counts_the_brokers_that_left_and_says_why() -> None:
    fleet = Fleet()
    journal = Journal(MemoryDatabase(), EPOCH, 10**6)
    fleet.state.change_log.listen(journal.on_change)
    fleet.register(topics=["TopicTest"])
    fleet.clock.advance(1_000)
    fleet.scan()
    calls = history_calls(fleet.state, journal)
    left, came = asyncio.run(calls.ListAuditEntries(pb.ListAuditEntriesRequest(), CONTEXT)).entries
    assert (left.removed_broker_count, left.removal_reason) == (1, route_data_pb2.REMOVAL_REASON_EXPIRED)
    assert (came.removed_broker_count, came.removal_reason) == (0, route_data_pb2.REMOVAL_REASON_UNSPECIFIED)


def test_pages_come_newest_first_and_outlive_changes_that_come_and_go() -> None:
    log = Log(max_entries=7)
    for _ in range(7):
        log.append()
    request = pb.ListAuditEntriesRequest(page_size=3)
    first = log.page(request)
    assert [entry.revision for entry in first.entries] == [7, 6, 5]
    for _ in range(2):  # two newer ones come, and the two oldest are dropped
        log.append()
    request.page_token = first.next_page_token
    second = log.page(request)
    assert [entry.revision for entry in second.entries] == [4, 3]
    assert second.next_page_token == ""
    for _ in range(7):  # and now all that the token could continue with are dropped
        log.append()
    assert log.revisions(request) == []


def test_entries_are_filtered_by_topic_broker_and_time(log: Log) -> None:
    log.append(queues("broker-a", "TopicA", "TopicB"), at=1_000)
    log.append(queues("broker-b", "TopicB"), at=2_000)
    log.append(queues("broker-a", "TopicC"), at=3_000)
    log.append(at=4_000)
    assert log.revisions(pb.ListAuditEntriesRequest(topic="TopicB")) == [2, 1]
    assert log.revisions(pb.ListAuditEntriesRequest(broker_name="broker-a")) == [3, 1]
    assert log.revisions(pb.ListAuditEntriesRequest(topic="TopicB", broker_name="broker-b")) == [2]
    assert log.revisions(pb.ListAuditEntriesRequest(from_millis=2_000)) == [4, 3, 2]
    assert log.revisions(pb.ListAuditEntriesRequest(from_millis=2_001)) == [4, 3]
    assert log.revisions(pb.ListAuditEntriesRequest(to_millis=2_000)) == [1]
    assert log.revisions(pb.ListAuditEntriesRequest(to_millis=2_001)) == [2, 1]
    assert log.revisions(pb.ListAuditEntriesRequest(from_millis=2_000, to_millis=4_000, topic="TopicC")) == [3]
    assert log.revisions(pb.ListAuditEntriesRequest(to_millis=0)) == []
    assert log.revisions(pb.ListAuditEntriesRequest(topic="TopicD")) == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ListAuditEntriesRequest(topic=""), "topic"),
        (pb.ListAuditEntriesRequest(topic="no\ttopic"), "topic"),
        (pb.ListAuditEntriesRequest(broker_name=""), "broker_name"),
        (pb.ListAuditEntriesRequest(broker_name="b" * 256), "broker_name"),
        (pb.ListAuditEntriesRequest(from_millis=-1), "from_millis"),
        (pb.ListAuditEntriesRequest(to_millis=-1), "to_millis"),
        (pb.ListAuditEntriesRequest(from_millis=5, to_millis=5), "to_millis"),
        (pb.ListAuditEntriesRequest(page_size=-1), "page_size"),
        (pb.ListAuditEntriesRequest(page_token=token(-1)), "page_token"),
    ],
)
def test_a_filter_that_breaks_its_rule_is_refused_by_name(
    log: Log, request_: pb.ListAuditEntriesRequest, field: str
) -> None:
    log.append()
    assert log.refusal(request_).violations[0].field == field


def test_a_page_has_100_entries_unless_told_otherwise_and_at_most_500(log: Log) -> None:
    for _ in range(501):
        log.append()
    sizes = {0: 100, 1: 1, 499: 499, 500: 500, 501: 500, 2**31 - 1: 500}
    for asked, given in sizes.items():
        answer = log.page(pb.ListAuditEntriesRequest(page_size=asked))
        assert len(answer.entries) == given
        assert answer.next_page_token == token(501 - given + 1)
    assert (limits.DEFAULT_AUDIT_PAGE_SIZE, limits.MAX_AUDIT_PAGE_SIZE) == (100, 500)


def test_a_page_of_the_longest_entries_stays_below_what_clients_take(log: Log) -> None:
    for _ in range(limits.MAX_AUDIT_PAGE_SIZE):
        log.append(*[KvChange(("€" * 85, "𐍈" * 63), None, "😀" * 99)] * 99)
    answer = log.page(pb.ListAuditEntriesRequest(page_size=limits.MAX_AUDIT_PAGE_SIZE))
    assert len(answer.entries) == limits.MAX_AUDIT_PAGE_SIZE
    assert answer.ByteSize() < limits.MAX_MESSAGE_BYTES / 2  # the other half is for comments


# The disk.


class Life:
    """An epoch of a name server; its database holds those before as well."""

    def __init__(self, database: Database, epoch: str) -> None:
        state = Fleet().state
        state.identity = NamesrvIdentity("ns-test", epoch)
        self.log = state.change_log
        self.journal = Journal(database, epoch, 10**6)
        self.log.listen(self.journal.on_change)
        self.calls = history_calls(state, self.journal)

    async def live(self, *rows: Row) -> None:
        """Makes a change of each row, a second after each other, and has them written."""
        for row in rows:
            self.log.append(Change(CAUSE, (row,)), 1_000 * (self.log.last.revision + 1))
        await self.journal.write_last()

    async def page(self, request: pb.ListAuditEntriesRequest) -> pb.ListAuditEntriesResponse:
        return await self.calls.ListAuditEntries(request, CONTEXT)

    async def all_pages(self, page_size: int, **filters: Any) -> list[tuple[str, int]]:
        request, found = pb.ListAuditEntriesRequest(page_size=page_size, **filters), []
        while True:
            answer = await self.page(request)
            found += [(entry.epoch, entry.revision) for entry in answer.entries]
            assert len(answer.entries) == page_size or not answer.next_page_token
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token


@asynccontextmanager
async def on_disk(folder: Path) -> AsyncIterator[Database]:
    database = Database(folder)
    try:
        yield database
    finally:
        await database.close(20)


ROWS = (queues("broker-a", "TopicA"), queues("broker-b", "TopicB"), queues("broker-a", "TopicB"), KV)


async def test_pages_go_on_to_former_epochs(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as database:
        await Life(database, "1-a").live(*ROWS)
        await Life(database, "1-b").live(*ROWS)
        life = Life(database, "2-a")
        await life.live(*ROWS)
        every = [(epoch, revision) for epoch in ("2-a", "1-b", "1-a") for revision in (4, 3, 2, 1)]
        for page_size in (1, 2, 3, 4, 5, 12, 13):
            assert await life.all_pages(page_size) == every


async def test_a_reason_that_a_newer_version_wrote_is_passed_on_by_its_number(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as database:
        life = Life(database, "1-a")
        await life.live(*ROWS)
        await database.write(lambda connection: connection.execute("UPDATE journal SET removal_reason = 99"))
        assert {entry.removal_reason for entry in (await life.page(pb.ListAuditEntriesRequest())).entries} == {99}
