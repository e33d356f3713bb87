"""ListAuditEntries: newest first, filtered, in pages that outlive changes, and never long at a stretch."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.core.changes import Cause, Change, ChangeLog, KvPut, QueuesPut, Row
from namesrv.core.errors import InvalidField
from namesrv.core.model import BrokerKey, QueueData, WriteRule
from namesrv.grpc_api import admin
from namesrv.grpc_api.admin import AuditCalls
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.paging import page_token
from tests.support.core_fleet import Fleet

CONTEXT = cast("Context", None)
"""The call does not ask for it."""
CAUSE = Cause("RegisterBroker", "caller", "comment")


class Journal:
    """A change log and the call that pages through it."""

    def __init__(self, max_changes: int = 100_000) -> None:
        self.manager = Fleet().manager
        self.log = self.manager.change_log = ChangeLog(max_changes)
        self.calls = AuditCalls(self.manager)

    def append(self, row: Row | None = None, at: int = 1_000) -> Change:
        return self.log.append(at, CAUSE, (row or KvPut("ns", "key", "value"),))

    def page(self, request: pb.ListAuditEntriesRequest) -> pb.ListAuditEntriesResponse:
        return asyncio.run(self.calls.ListAuditEntries(request, CONTEXT))

    def revisions(self, request: pb.ListAuditEntriesRequest) -> list[int]:
        return [entry.revision for entry in self.page(request).entries]

    def refusal(self, request: pb.ListAuditEntriesRequest) -> InvalidField:
        with pytest.raises(InvalidField) as caught:
            self.page(request)
        return caught.value


@pytest.fixture
def journal() -> Journal:
    return Journal()


def queues(broker_name: str, *topics: str) -> QueuesPut:
    broker = BrokerKey("DefaultCluster", broker_name)
    return QueuesPut(broker, dict.fromkeys(topics, QueueData(broker, 4, 4, 6, 0, b"", b"", b"")), WriteRule.REPORTED)


def test_an_entry_says_all_that_is_known_of_a_change(journal: Journal) -> None:
    journal.append(queues("broker-a", "TopicA"), at=12_345)
    answer = journal.page(pb.ListAuditEntriesRequest())
    assert answer.header == journal.manager.header()
    assert list(answer.entries) == [
        pb.AuditEntry(
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
    fleet.register(topics=["TopicTest"])
    fleet.clock.advance(1_000)
    fleet.scan()
    calls = AuditCalls(fleet.manager)
    left, came = asyncio.run(calls.ListAuditEntries(pb.ListAuditEntriesRequest(), CONTEXT)).entries
    assert (left.removed_broker_count, left.removal_reason) == (1, route_data_pb2.REMOVAL_REASON_EXPIRED)
    assert (came.removed_broker_count, came.removal_reason) == (0, route_data_pb2.REMOVAL_REASON_UNSPECIFIED)


def test_an_empty_journal_has_one_empty_page(journal: Journal) -> None:
    answer = journal.page(pb.ListAuditEntriesRequest(page_token=page_token("5")))
    assert (list(answer.entries), answer.next_page_token) == ([], "")


def test_pages_come_newest_first_and_outlive_changes_that_come_and_go() -> None:
    journal = Journal(max_changes=7)
    for _ in range(7):
        journal.append()
    request = pb.ListAuditEntriesRequest(page_size=3)
    first = journal.page(request)
    assert [entry.revision for entry in first.entries] == [7, 6, 5]
    for _ in range(2):  # two newer ones come, and the two oldest are dropped
        journal.append()
    request.page_token = first.next_page_token
    second = journal.page(request)
    assert [entry.revision for entry in second.entries] == [4, 3]
    assert second.next_page_token == ""
    for _ in range(7):  # and now all that the token could go on with are dropped
        journal.append()
    assert journal.revisions(request) == []


def test_a_page_that_ends_with_the_last_wanted_entry_is_the_last(journal: Journal) -> None:
    for name in ("broker-b", "broker-a", "broker-a", "broker-b"):
        journal.append(queues(name, "T"))
    answer = journal.page(pb.ListAuditEntriesRequest(broker_name="broker-a", page_size=2))
    assert [entry.revision for entry in answer.entries] == [3, 2]
    assert answer.next_page_token == ""


def test_a_token_of_another_epoch_starts_where_its_revision_would_be(journal: Journal) -> None:
    for _ in range(3):
        journal.append()
    assert journal.revisions(pb.ListAuditEntriesRequest(page_token=page_token("3"))) == [2, 1]
    assert journal.revisions(pb.ListAuditEntriesRequest(page_token=page_token("4"))) == [3, 2, 1]
    assert journal.revisions(pb.ListAuditEntriesRequest(page_token=page_token("9" * 18))) == [3, 2, 1]
    assert journal.revisions(pb.ListAuditEntriesRequest(page_token=page_token("0"))) == []


@pytest.mark.parametrize("token", ["!", page_token("-1"), page_token("1.0"), page_token("٣"), page_token("9" * 19)])
def test_a_token_that_was_never_given_is_refused(journal: Journal, token: str) -> None:
    assert journal.refusal(pb.ListAuditEntriesRequest(page_token=token)).field == "page_token"


def test_entries_are_filtered_by_topic_broker_and_time(journal: Journal) -> None:
    journal.append(queues("broker-a", "TopicA", "TopicB"), at=1_000)
    journal.append(queues("broker-b", "TopicB"), at=2_000)
    journal.append(queues("broker-a", "TopicC"), at=3_000)
    journal.append(at=4_000)
    assert journal.revisions(pb.ListAuditEntriesRequest(topic="TopicB")) == [2, 1]
    assert journal.revisions(pb.ListAuditEntriesRequest(broker_name="broker-a")) == [3, 1]
    assert journal.revisions(pb.ListAuditEntriesRequest(topic="TopicB", broker_name="broker-b")) == [2]
    assert journal.revisions(pb.ListAuditEntriesRequest(from_millis=2_000)) == [4, 3, 2]
    assert journal.revisions(pb.ListAuditEntriesRequest(from_millis=2_001)) == [4, 3]
    assert journal.revisions(pb.ListAuditEntriesRequest(to_millis=2_000)) == [1]
    assert journal.revisions(pb.ListAuditEntriesRequest(to_millis=2_001)) == [2, 1]
    assert journal.revisions(pb.ListAuditEntriesRequest(from_millis=2_000, to_millis=4_000, topic="TopicC")) == [3]
    assert journal.revisions(pb.ListAuditEntriesRequest(to_millis=0)) == []
    assert journal.revisions(pb.ListAuditEntriesRequest(topic="TopicD")) == []


def test_a_clock_that_stepped_back_hides_no_entry(journal: Journal) -> None:
    for at in (5_000, 1_000, 6_000):
        journal.append(at=at)
    assert journal.revisions(pb.ListAuditEntriesRequest(from_millis=5_000)) == [3, 1]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ListAuditEntriesRequest(topic=""), "topic"),
        (pb.ListAuditEntriesRequest(topic="no topic"), "topic"),
        (pb.ListAuditEntriesRequest(broker_name=""), "broker_name"),
        (pb.ListAuditEntriesRequest(broker_name="b" * 128), "broker_name"),
        (pb.ListAuditEntriesRequest(from_millis=-1), "from_millis"),
        (pb.ListAuditEntriesRequest(to_millis=-1), "to_millis"),
        (pb.ListAuditEntriesRequest(from_millis=5, to_millis=5), "to_millis"),
        (pb.ListAuditEntriesRequest(page_size=-1), "page_size"),
    ],
)
def test_a_filter_that_breaks_its_rule_is_refused_by_name(
    journal: Journal, request_: pb.ListAuditEntriesRequest, field: str
) -> None:
    journal.append()
    assert journal.refusal(request_).field == field


def test_a_page_has_100_entries_unless_told_otherwise_and_at_most_500(journal: Journal) -> None:
    for _ in range(501):
        journal.append()
    sizes = {0: 100, 1: 1, 499: 499, 500: 500, 501: 500, 2**31 - 1: 500}
    for asked, given in sizes.items():
        answer = journal.page(pb.ListAuditEntriesRequest(page_size=asked))
        assert len(answer.entries) == given
        assert answer.next_page_token == page_token(str(501 - given + 1))
    assert (limits.DEFAULT_AUDIT_PAGE_SIZE, limits.MAX_AUDIT_PAGE_SIZE) == (100, 500)


def test_a_page_of_the_longest_entries_stays_below_what_clients_take(journal: Journal) -> None:
    for _ in range(limits.MAX_AUDIT_PAGE_SIZE):
        journal.log.append(1_000, CAUSE, tuple(KvPut("€" * 85, "𐍈" * 63, "😀" * 99) for _ in range(99)))
    answer = journal.page(pb.ListAuditEntriesRequest(page_size=limits.MAX_AUDIT_PAGE_SIZE))
    assert len(answer.entries) == limits.MAX_AUDIT_PAGE_SIZE
    assert answer.ByteSize() < limits.MAX_MESSAGE_BYTES / 2  # the other half is for comments


def test_a_filter_over_a_full_journal_gives_way_again_and_again(journal: Journal) -> None:
    for number in range(20_000):
        journal.append(queues("broker-a", "TopicA" if number == 0 else "TopicB"))

    turns, found = turns_and_revisions(journal, pb.ListAuditEntriesRequest(topic="TopicA"))
    assert found == [1]
    assert turns >= 2 * 20_000 // admin._FILTER_SLICE  # each has one row


def test_a_filter_gives_way_within_a_change_of_very_many_groups(journal: Journal) -> None:
    slices = 5
    rows = [queues(f"broker-{number}", "TopicB") for number in range(slices * admin._FILTER_SLICE)]
    journal.log.append(1_000, CAUSE, (queues("broker-a", "TopicB"), *rows, queues("broker-b", "TopicA")))
    request = pb.ListAuditEntriesRequest(topic="TopicA", broker_name="broker-a")
    turns, found = turns_and_revisions(journal, request)
    assert found == [1]
    assert turns >= slices
    assert turns_and_revisions(journal, pb.ListAuditEntriesRequest(topic="TopicC"))[1] == []


def turns_and_revisions(journal: Journal, request: pb.ListAuditEntriesRequest) -> tuple[int, list[int]]:
    """How often something else ran meanwhile, and the answer."""

    async def others_run_meanwhile() -> tuple[int, list[int]]:
        call = asyncio.create_task(journal.calls.ListAuditEntries(request, CONTEXT))
        turns = 0
        while not call.done():
            await asyncio.sleep(0)
            turns += 1
        return turns, [entry.revision for entry in call.result().entries]

    return asyncio.run(others_run_meanwhile())
