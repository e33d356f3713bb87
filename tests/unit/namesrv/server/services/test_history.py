"""ListAuditEntries: what its answers carry, refuse and are bounded by, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.core.changes import Cause, Change, KvChange, QueuesChange, Row
from namesrv.core.errors import Reason
from namesrv.core.model import BrokerKey, QueueData
from namesrv.core.state import NamesrvIdentity
from namesrv.grpc_api.handlers import token_after
from namesrv.storage.database import Database, MemoryDatabase
from namesrv.storage.journal import Journal
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.servicers import admin_servicer
from tests.unit.namesrv.storage.storage_inputs import opened

CAUSE = Cause("RegisterBroker", "caller", "comment")
EPOCH = "000000000000001-00000000"
"""Of every fleet in a test."""
KV = KvChange(("ns", "key"), None, "value")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A database on disk."""
    with opened(tmp_path) as made:
        yield made


class Log:
    """A change log, the journal of its changes, by default in memory, and the call that pages through it."""

    def __init__(self, database: Database | None = None, epoch: str = EPOCH) -> None:
        self.fleet = Fleet()
        self.state = self.fleet.state
        self.state.identity = NamesrvIdentity("ns-test", epoch)
        self.log = self.state.change_log
        self.journal = Journal(database or MemoryDatabase(), epoch, 10**7)
        self.log.listen(self.journal.on_change)
        self.calls = admin_servicer(self.fleet, journal=self.journal)

    def append(self, *rows: Row, at: int = 1_000) -> None:
        self.log.append(Change(CAUSE, rows or (KV,)), at)

    def page(self, request: pb.ListAuditEntriesRequest) -> pb.ListAuditEntriesResponse:
        asyncio.run(self.journal.write_last())
        return asyncio.run(self.calls.ListAuditEntries(request, CONTEXT))

    def revisions(self, request: pb.ListAuditEntriesRequest) -> list[int]:
        return [entry.revision for entry in self.page(request).entries]


@pytest.fixture
def log() -> Log:
    return Log()


def queues(broker_name: str, *topics: str) -> QueuesChange:
    broker = BrokerKey("DefaultCluster", broker_name)
    return QueuesChange(broker, None, dict.fromkeys(topics, QueueData(broker, 4, 4, 6, 0, b"", ())))


def test_an_entry_says_all_that_is_known_of_a_change(log: Log) -> None:
    log.fleet.register()
    log.fleet.unregister()
    log.append(queues("broker-a", "TopicA"), at=12_345)
    answer = log.page(pb.ListAuditEntriesRequest())
    assert (answer.header, answer.next_page_token) == (log.state.header(), "")
    put, left, _ = answer.entries
    assert put == pb.AuditEntry(
        epoch=EPOCH,
        revision=3,
        applied_at_millis=12_345,
        caller="caller",
        cause="RegisterBroker",
        summary="broker-a of DefaultCluster: 1 topic put (TopicA)",
        comment="comment",
    )
    assert (left.removed_broker_count, left.removal_reason) == (1, route_data_pb2.REMOVAL_REASON_UNREGISTERED)


def test_entries_are_filtered_by_topic_broker_and_time(log: Log) -> None:
    log.append(queues("broker-a", "TopicA", "TopicB"), at=1_000)
    log.append(queues("broker-b", "TopicB"), at=2_000)
    log.append(queues("broker-a", "TopicC"), at=3_000)
    log.append(at=4_000)
    assert log.revisions(pb.ListAuditEntriesRequest(topic="TopicB")) == [2, 1]
    assert log.revisions(pb.ListAuditEntriesRequest(broker_name="broker-a")) == [3, 1]
    assert log.revisions(pb.ListAuditEntriesRequest(from_millis=2_000, to_millis=4_000)) == [3, 2]
    assert log.revisions(pb.ListAuditEntriesRequest(to_millis=0)) == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ListAuditEntriesRequest(topic=""), "topic"),
        (pb.ListAuditEntriesRequest(broker_name="b" * 256), "broker_name"),
        (pb.ListAuditEntriesRequest(from_millis=-1), "from_millis"),
        (pb.ListAuditEntriesRequest(to_millis=-1), "to_millis"),
        (pb.ListAuditEntriesRequest(from_millis=5, to_millis=5), "to_millis"),
        (pb.ListAuditEntriesRequest(after_epoch="e"), "after_revision"),
        (pb.ListAuditEntriesRequest(after_revision=1), "after_epoch"),
        (pb.ExplainTopicRouteRequest(topic="no\ttopic"), "topic"),
        (pb.ExplainTopicRouteRequest(topic="T", broker_name=""), "broker_name"),
        (pb.ExplainTopicRouteRequest(topic="T", cluster_name="c"), "broker_name"),
        (pb.ExplainTopicRouteRequest(topic="T", broker_name="b", cluster_name=""), "cluster_name"),
        (pb.ExplainTopicRouteRequest(topic="T", zone_name="no\tzone"), "zone_name"),
    ],
)
def test_a_field_that_breaks_its_rule_is_refused_by_name(log: Log, request_: Message, field: str) -> None:
    log.append()
    with refuses(Reason.INVALID_FIELD) as caught:
        asyncio.run(getattr(log.calls, request_.DESCRIPTOR.name.removesuffix("Request"))(request_, CONTEXT))
    assert caught.value.violations[0].field == field


def test_a_page_has_100_entries_unless_told_otherwise_and_at_most_500(log: Log) -> None:
    for _ in range(501):
        log.append()
    sizes = {0: 100, 1: 1, 499: 499, 500: 500, 501: 500, 2**31 - 1: 500}
    for asked, given in sizes.items():
        answer = log.page(pb.ListAuditEntriesRequest(page_size=asked))
        assert len(answer.entries) == given
        assert answer.next_page_token == token_after(pb.ListAuditEntriesRequest(), (EPOCH, 501 - given + 1))
    assert (limits.DEFAULT_AUDIT_PAGE_SIZE, limits.MAX_AUDIT_PAGE_SIZE) == (100, 500)


def test_a_page_of_the_longest_entries_stays_below_what_clients_take(log: Log) -> None:
    for _ in range(limits.MAX_AUDIT_PAGE_SIZE):
        log.append(*[KvChange(("€" * 85, "𐍈" * 63), None, "😀" * 99)] * 99)
    answer = log.page(pb.ListAuditEntriesRequest(page_size=limits.MAX_AUDIT_PAGE_SIZE))
    assert len(answer.entries) == limits.MAX_AUDIT_PAGE_SIZE
    assert answer.ByteSize() < limits.MAX_MESSAGE_BYTES / 2  # the other half is for comments


def test_pages_go_on_to_former_epochs(database: Database) -> None:
    for epoch in ("1-a", "1-b", "2-a"):
        log = Log(database, epoch)
        for _ in range(4):
            log.append()
        asyncio.run(log.journal.write_last())
    every = [(epoch, revision) for epoch in ("2-a", "1-b", "1-a") for revision in (4, 3, 2, 1)]
    for page_size in (1, 2, 3, 4, 5, 12, 13):
        request, found = pb.ListAuditEntriesRequest(page_size=page_size), list[tuple[str, int]]()
        while not found or request.page_token:
            answer = log.page(request)
            found += [(entry.epoch, entry.revision) for entry in answer.entries]
            assert len(answer.entries) == page_size or not answer.next_page_token
            request.page_token = answer.next_page_token
        assert found == every


def test_a_reason_that_a_newer_version_wrote_is_passed_on_by_its_number(database: Database) -> None:
    log = Log(database)
    log.append()
    asyncio.run(log.journal.write_last())
    asyncio.run(database.write(lambda connection: connection.execute("UPDATE journal SET removal_reason = 99")))
    assert [entry.removal_reason for entry in log.page(pb.ListAuditEntriesRequest()).entries] == [99]
