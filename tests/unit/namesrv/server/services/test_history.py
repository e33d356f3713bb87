"""ListAuditEntries and ExplainTopicRoute: what their answers carry, refuse and are bounded by, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.core.changes import Cause, Change, ChangeLog, KvChange, QueuesChange, Row
from namesrv.core.errors import Reason
from namesrv.core.explain import MAX_TEXT_LENGTH
from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKind, QueueData
from namesrv.core.operator_changes import IntentsChange, TopicDeletion
from namesrv.core.state import NamesrvIdentity
from namesrv.grpc_api.paging import token_after
from namesrv.storage.database import DATABASE_FILE, Database, MemoryDatabase
from namesrv.storage.journal import Journal
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import CLUSTER, B, Fleet
from tests.support.refusals import refuses
from tests.support.state_changes import apply_now
from tests.unit.namesrv.explaining import NEWER, T0, T0_MILLIS, T10, T10_MILLIS, decide, only
from tests.unit.namesrv.servicers import admin_servicer

CAUSE = Cause("RegisterBroker", "caller", "comment")
EPOCH = "000000000000001-00000000"
"""Of every fleet in a test."""


KV = KvChange(("ns", "key"), None, "value")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A database on disk."""
    database = Database(tmp_path)
    yield database
    asyncio.run(database.close(20))


class Log:
    """A change log, the journal of its changes, by default in memory, and the call that pages through it."""

    def __init__(self, database: Database | None = None, epoch: str = EPOCH, max_entries: int = 1_000) -> None:
        self.fleet = Fleet()
        self.state = self.fleet.state
        self.state.identity = NamesrvIdentity("ns-test", epoch)
        self.log = self.state.change_log
        self.journal = Journal(database or MemoryDatabase(), epoch, 10**7, max_entries=max_entries)
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


def test_an_entry_counts_the_brokers_that_left_and_says_why(log: Log) -> None:
    log.fleet.register(topics=["TopicTest"])
    log.fleet.clock.advance(1_000)
    log.fleet.scan()
    left, came = log.page(pb.ListAuditEntriesRequest()).entries
    assert (left.removed_broker_count, left.removal_reason) == (1, route_data_pb2.REMOVAL_REASON_EXPIRED)
    assert (came.removed_broker_count, came.removal_reason) == (0, route_data_pb2.REMOVAL_REASON_UNSPECIFIED)


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
        assert answer.next_page_token == token(501 - given + 1)
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


def call(
    fleet: Fleet, request: pb.ExplainTopicRouteRequest, journal: Journal | None = None
) -> pb.ExplainTopicRouteResponse:
    return asyncio.run(admin_servicer(fleet, journal=journal).ExplainTopicRoute(request, CONTEXT))


def told_of(fleet: Fleet, journal: Journal, broker_name: str) -> pb.RouteExplanation:
    (told,) = call(fleet, pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name=broker_name), journal).explanations
    return told


def test_the_answer_carries_all_that_is_known(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b")
    decide(fleet, IntentKind.WIPE_WRITE_PERM, BrokerKey(CLUSTER, "broker-b"), comment="")
    fleet.unregister()
    answer = call(fleet, pb.ExplainTopicRouteRequest(topic="TopicTest"))
    assert answer.header == fleet.state.header()
    gone, present = answer.explanations
    assert (gone.cluster_name, gone.broker_name) == (CLUSTER, "broker-a")
    assert gone.state == pb.RouteExplanation.STATE_GROUP_LEFT
    assert gone.removal_reason == route_data_pb2.REMOVAL_REASON_UNREGISTERED
    assert (gone.since_millis, present.since_millis) == (T0_MILLIS, T0_MILLIS)
    assert present == pb.RouteExplanation(
        cluster_name=CLUSTER,
        broker_name="broker-b",
        state=pb.RouteExplanation.STATE_IN_ROUTE,
        conditions=[pb.RouteExplanation.CONDITION_DRAINED],
        explanation=f"in the route with 4 queues to read; read-only because drained by an operator since {T0}",
        since_millis=T0_MILLIS,
    )


def test_what_is_not_known_is_absent_from_the_answer(fleet: Fleet) -> None:
    request = pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name="broker-x")
    (explanation,) = call(fleet, request).explanations
    assert not explanation.HasField("since_millis")
    assert explanation.removal_reason == route_data_pb2.REMOVAL_REASON_UNSPECIFIED


def test_an_answer_tells_of_so_many_groups_and_not_of_one_more(fleet: Fleet) -> None:
    request = pb.ExplainTopicRouteRequest(topic="Unknown")
    for number in range(limits.MAX_EXPLANATIONS + 1):
        if number == limits.MAX_EXPLANATIONS:
            assert len(call(fleet, request).explanations) == limits.MAX_EXPLANATIONS
        fleet.register(f"10.0.{number // 250}.{number % 250}:1", name=f"b-{number}", topics=[])
    with refuses(Reason.LIMIT_EXCEEDED, match="broker_name"):
        call(fleet, request)


def test_an_answer_of_the_longest_texts_is_below_what_clients_take() -> None:
    row = pb.RouteExplanation(
        cluster_name="c" * 127,
        broker_name="b" * 127,
        state=pb.RouteExplanation.STATE_IN_ROUTE,
        conditions=pb.RouteExplanation.Condition.keys(),
        explanation="\U0001f600" * MAX_TEXT_LENGTH,
        since_millis=2**63 - 1,
        removal_reason="REMOVAL_REASON_EXPIRED",
    )
    assert pb.ExplainTopicRouteResponse(explanations=[row] * limits.MAX_EXPLANATIONS).ByteSize() < 4 * 1024 * 1024


def test_an_explanation_with_two_long_comments_is_cut(fleet: Fleet) -> None:
    comment = "\U0001f600" * limits.MAX_COMMENT_LENGTH
    fleet.register()
    fleet.register(B, 1)
    hold_all = Intent(IntentKind.TOPIC_HOLD, HoldKey("TopicTest", None), "an operator", T0_MILLIS, comment)
    cause = Cause("DeleteTopic", "an operator", comment)
    apply_now(TopicDeletion(fleet.state, "TopicTest", None, cause))
    assert len(only(fleet).text) < MAX_TEXT_LENGTH
    apply_now(IntentsChange(fleet.state, fleet.state.intents.with_intent(hold_all), cause))
    text = only(fleet).text
    assert len(text) == MAX_TEXT_LENGTH
    assert text.endswith("...")


# Groups that left before the start.


@pytest.fixture
def restarted(database: Database) -> tuple[Fleet, Journal]:
    """A fleet after a restart. The life before it knew broker-a, whose channel ended, and broker-b, which stayed."""
    former = Fleet()
    journal = Journal(database, former.state.identity.epoch, 10**6)
    former.state.change_log.listen(journal.on_change)
    channel = former.heartbeats.open_channel()
    former.register(channel_id=channel)
    former.register(B, name="broker-b")
    former.clock.advance(10)
    former.end_channel(channel)
    former.register(B, name="broker-b", topics=["TopicTest", "Other"], version=NEWER)
    asyncio.run(journal.write_last())
    fleet = Fleet()
    fleet.state.identity = NamesrvIdentity("ns-test", "000000000000002-00000000")
    return fleet, Journal(database, fleet.state.identity.epoch, 10**6)


def test_a_group_that_left_before_the_restart_is_told_from_the_journal(restarted: tuple[Fleet, Journal]) -> None:
    told = told_of(*restarted, "broker-a")
    before, _, entry = told.explanation.partition("; before that, ")
    assert before == only(restarted[0], broker_name="broker-a").text
    assert entry == (
        f"at {T10}: broker-a (127.0.0.1:10911, id 0) of DefaultCluster lost its channel: "
        "group gone; 1 topic lost its queues on it (TopicTest)"
    )
    assert (told.state, told.since_millis) == (pb.RouteExplanation.STATE_NEVER_REGISTERED, T10_MILLIS)
    assert told.removal_reason == route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED


def test_a_group_that_was_there_at_the_end_of_the_last_life_did_not_leave(restarted: tuple[Fleet, Journal]) -> None:
    told = told_of(*restarted, "broker-b")
    assert told.explanation.endswith(
        "broker-b (127.0.0.1:20911, id 0) of DefaultCluster registered: 1 topic put (Other)"
    )
    assert told.removal_reason == route_data_pb2.REMOVAL_REASON_UNSPECIFIED


def test_a_group_that_memory_has_forgotten_is_told_from_the_journal(restarted: tuple[Fleet, Journal]) -> None:
    fleet, journal = restarted
    fleet.state.change_log = ChangeLog(max_changes=1)
    fleet.state.change_log.listen(journal.on_change)
    fleet.register()
    fleet.unregister()
    fleet.register(B, name="broker-b")
    asyncio.run(journal.write_last())
    before, _, entry = told_of(fleet, journal, "broker-a").explanation.partition("; before that, ")
    assert before.endswith("; the change log reaches back to revision 2")
    assert entry.startswith(f"at {T0}: broker-a (127.0.0.1:10911, id 0) of DefaultCluster unregistered: ")


def test_a_group_in_memory_or_in_no_entry_is_explained_without_the_journal(restarted: tuple[Fleet, Journal]) -> None:
    fleet, journal = restarted
    fleet.register(name="broker-c")
    for broker_name in ("broker-c", "broker-x"):
        assert told_of(fleet, journal, broker_name).explanation == only(fleet, broker_name=broker_name).text
    everything = call(fleet, pb.ExplainTopicRouteRequest(topic="TopicTest"), journal)
    assert [each.broker_name for each in everything.explanations] == ["broker-c"]


def test_a_journal_that_cannot_be_read_takes_nothing_from_an_explanation(
    restarted: tuple[Fleet, Journal], tmp_path: Path
) -> None:
    (tmp_path / DATABASE_FILE).rename(tmp_path / "away")
    assert told_of(*restarted, "broker-a").explanation == only(restarted[0], broker_name="broker-a").text
