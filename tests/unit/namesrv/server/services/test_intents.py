"""The calls by which operators decide: what is refused or needs force, what is the same again, and confirmed losses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb
from structlog.testing import capture_logs

from namesrv import limits
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import DataVersion, Doubt, ReportedTopic
from namesrv.core.removals import TOPICS_NAMED
from namesrv.storage.database import Database
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.servicers import admin_servicer
from tests.unit.namesrv.storage.storage_inputs import opened


class Operator:
    """A name server with a data directory, and its caller."""

    def __init__(self, database: Database | None) -> None:
        self.fleet = Fleet()
        self.state = self.fleet.state
        self._calls = admin_servicer(self.fleet, database)

    def call(self, request: Message) -> Any:
        """Makes the call of a request."""
        return asyncio.run(getattr(self._calls, request.DESCRIPTOR.name.removesuffix("Request"))(request, CONTEXT))

    def refused(self, request: Message, reason: Reason) -> Refused:
        """The error of a call, which must not have changed anything."""
        before = self.state.revision, self.state.intents
        with refuses(reason) as caught:
            self.call(request)
        assert (self.state.revision, self.state.intents) == before
        return caught.value

    def perm(self, topic: str = "TopicTest") -> int:
        route = self.fleet.route(topic)
        assert route is not None
        return route.queue_datas[0].perm

    def listed(self) -> list[pb.Intent]:
        return list(self.call(pb.ListIntentsRequest()).intents)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with opened(tmp_path) as database:
        yield Operator(database)


def wipe(name: str = "broker-a", **fields: Any) -> pb.WipeWritePermOfBrokerRequest:
    return pb.WipeWritePermOfBrokerRequest(force=True, broker_name=name, **fields)


def add(name: str = "broker-a", **fields: Any) -> pb.AddWritePermOfBrokerRequest:
    return pb.AddWritePermOfBrokerRequest(broker_name=name, **fields)


def hold(topic: str = "TopicTest", **fields: Any) -> pb.DeleteTopicRequest:
    return pb.DeleteTopicRequest(force=True, topic=topic, hold=True, **fields)


def test_a_wipe_and_its_restoration_count_topics_and_tell_what_they_do(operator: Operator) -> None:
    operator.fleet.register(topics=["TopicTest", "Other"])
    radius = pb.BlastRadius(topics_changed=2, topics_losing_last_writable_queue=2, sample_topics=["Other", "TopicTest"])
    answer = operator.call(wipe(comment="disk"))
    assert (answer.wipe_topic_count, answer.blast_radius, operator.perm()) == (2, radius, 4)
    assert answer.header == operator.state.header()
    answer = operator.call(add())
    radius.topics_losing_last_writable_queue = 0
    assert (answer.add_topic_count, answer.blast_radius, operator.perm()) == (2, radius, 6)
    assert operator.listed() == []


def wiped(operator: Operator) -> tuple[int, int, list[str]]:
    """The topics that a wipe would change, those that would lose their last writable queue, and a sample."""
    radius = operator.call(wipe(validate_only=True)).blast_radius
    return radius.topics_changed, radius.topics_losing_last_writable_queue, list(radius.sample_topics)


def test_only_topics_of_applications_lose_queues_and_they_are_named_first(operator: Operator) -> None:
    own = ["%DLQ%g", "%RETRY%g", "BenchmarkTest", "RMQ_SYS_ROCKSDB_OFFSET_TOPIC", CLUSTER, "broker-a"]
    fleet, newer = operator.fleet, DataVersion(2_000, 2)
    fleet.register(topics=own)
    assert wiped(operator) == (len(own), 0, sorted(own))
    fleet.register(version=newer, topics=[*own, "zebra"])
    fleet.register(B, name="broker-b", topics=["apple"])
    assert wiped(operator) == (len(own) + 1, 1, ["zebra"])
    fleet.register(B, name="broker-b", version=newer, topics=["apple", *own, "zebra"])
    assert wiped(operator) == (len(own) + 1, 0, ["zebra", *sorted(own)])


def test_the_first_hundred_topics_of_the_worst_kind_are_named(operator: Operator) -> None:
    topics = [f"t{number:04}" for number in range(2_000)]
    operator.fleet.register(topics=[*reversed(topics), ("a-read-only-one", (4, 4, 4, 0))])
    assert wiped(operator) == (2_000, 2_000, topics[:100])


def test_the_same_intent_again_takes_no_revision_and_keeps_caller_and_time(operator: Operator) -> None:
    operator.fleet.register(topics=["TopicTest", "Other"])
    ends_at = operator.fleet.clock.wall_millis() + 60_000
    first = wipe(comment="disk", ends_at_millis=ends_at)
    for request in (first, hold(comment="gone")):
        operator.call(request)
        revision, listed = operator.state.revision, operator.listed()
        operator.fleet.clock.advance(1)
        answer = operator.call(request)
        assert answer.header.revision == revision
        assert answer.blast_radius == pb.BlastRadius()
        assert operator.listed() == listed
    for other in (wipe(comment="disk"), wipe(comment="other"), hold(comment="other")):
        revision = operator.state.revision
        assert operator.call(other).header.revision == revision + 1
    assert len(operator.listed()) == 2
    operator.call(add())
    operator.call(add(comment="one"))
    revision = operator.state.revision
    assert operator.call(add(comment="two")).header.revision == revision


def test_who_decides_again_without_a_reason_leaves_the_one_that_was_given(operator: Operator) -> None:
    operator.fleet.register(topics=["TopicTest"])
    operator.call(hold(comment="legal hold"))
    operator.call(hold())
    operator.call(wipe(comment="new disks"))
    operator.call(wipe(ends_at_millis=operator.fleet.clock.wall_millis() + 60_000))
    expected = [("legal hold", False), ("new disks", True)]
    assert [(intent.comment, intent.HasField("ends_at_millis")) for intent in operator.listed()] == expected
    operator.call(hold(comment="another"))
    assert operator.listed()[0].comment == "another"


def test_a_group_of_two_clusters_must_be_told_apart(operator: Operator) -> None:
    operator.fleet.register()
    operator.fleet.register(B, cluster="other")
    for request in (wipe(), add()):
        error = operator.refused(request, Reason.INVALID_FIELD)
        assert error.violations[0].field == "cluster_name"
        assert "DefaultCluster, other:" in error.violations[0].description
    operator.call(wipe(cluster_name="other"))
    route = operator.fleet.route()
    assert route is not None
    assert {data.cluster_name: data.perm for data in route.queue_datas} == {CLUSTER: 6, "other": 4}


def test_an_error_names_only_some_of_very_many_clusters(operator: Operator) -> None:
    for number in range(13):
        operator.fleet.register(cluster=f"c{number:02}")
    assert "c09 and 3 more: " in operator.refused(wipe(), Reason.INVALID_FIELD).violations[0].description


def test_an_unknown_group_is_an_error_unless_its_cluster_is_named(operator: Operator) -> None:
    operator.call(wipe("another", cluster_name="elsewhere"))
    for request in (wipe(), add()):
        error = operator.refused(request, Reason.BROKER_NOT_REGISTERED)
        assert error.metadata == {"broker_name": "broker-a"}
        assert error.text == "broker group broker-a is not registered"
    operator.fleet.register()
    operator.call(wipe())
    operator.fleet.unregister()
    answer = operator.call(wipe())
    assert answer.HasField("wipe_topic_count")
    assert (answer.wipe_topic_count, answer.group_registered) == (0, False)
    operator.call(add())
    assert [intent.broker_name for intent in operator.listed()] == ["another"]
    operator.refused(add(), Reason.BROKER_NOT_REGISTERED)


def test_an_intent_about_an_absent_group_is_in_force_from_its_first_registration(operator: Operator) -> None:
    decisions = ((wipe(cluster_name=CLUSTER), A, 6, 4), (add("broker-b", cluster_name=CLUSTER), B, 4, 6))
    for request, addr, reported, perm in decisions:
        for validate_only in (True, False):
            request.validate_only = validate_only
            answer = operator.call(request)
            assert (answer.HasField("group_registered"), answer.group_registered) == (True, False)
            assert answer.blast_radius == pb.BlastRadius()
        name = request.broker_name
        operator.fleet.register(addr, name=name, topics=[(name, (4, 4, reported, 0))])
        assert operator.perm(name) == perm
        assert operator.call(request).group_registered


def test_a_hold_of_a_topic_that_nobody_reports_is_in_force_from_its_first_report(operator: Operator) -> None:
    for asked in (hold(validate_only=True), hold()):
        answer = operator.call(asked)
        assert (answer.removed_queue_data_count, answer.HasField("topic_reported")) == (0, True)
        assert not answer.topic_reported
    operator.fleet.register(topics=["TopicTest", "Other"])
    assert operator.fleet.topics == {"Other"}
    assert operator.call(hold()).topic_reported
    assert operator.call(pb.ReleaseTopicHoldRequest(topic="TopicTest")).restored_queue_data_count == 1


def test_the_list_says_which_intents_wait_for_a_registration(operator: Operator) -> None:
    operator.fleet.register()
    for request in (wipe(), wipe("broker-x", cluster_name=CLUSTER), hold(), hold("Other")):
        operator.call(request)
    waiting = {intent.broker_name or intent.topic: intent.awaits_registration for intent in operator.listed()}
    assert waiting == {"broker-a": False, "broker-x": True, "TopicTest": False, "Other": True}
    operator.fleet.unregister()
    assert all(intent.awaits_registration for intent in operator.listed())


def test_a_topic_can_be_deleted_held_and_released(operator: Operator) -> None:
    operator.fleet.register()
    answer = operator.call(hold(comment="gone"))
    radius = pb.BlastRadius(topics_changed=1, topics_vanishing=1, sample_topics=["TopicTest"])
    assert (answer.removed_queue_data_count, answer.blast_radius) == (1, radius)
    assert operator.call(hold(comment="gone")).removed_queue_data_count == 0
    released = operator.call(pb.ReleaseTopicHoldRequest(topic="TopicTest"))
    assert (released.restored_queue_data_count, released.header) == (1, operator.fleet.state.header())
    assert operator.fleet.topics == {"TopicTest"}


def test_topics_and_holds_that_are_not_there_are_errors(operator: Operator) -> None:
    operator.fleet.register()
    operator.refused(pb.DeleteTopicRequest(force=True, topic="Other"), Reason.TOPIC_NOT_FOUND)
    missing = operator.refused(pb.DeleteTopicRequest(topic="TopicTest", cluster_name="x"), Reason.TOPIC_NOT_FOUND)
    assert missing.text == "no topic route info in this name server for the topic 'TopicTest' in cluster 'x'"
    assert missing.metadata == {"topic": "TopicTest", "cluster_name": "x"}
    operator.call(hold())
    error = operator.refused(pb.ReleaseTopicHoldRequest(topic="TopicTest", cluster_name="x"), Reason.INTENT_NOT_FOUND)
    assert error.metadata == {"topic": "TopicTest", "cluster_name": "x"}
    assert "TopicTest in cluster x" in error.text
    error = operator.refused(pb.ReleaseTopicHoldRequest(topic="Other"), Reason.INTENT_NOT_FOUND)
    assert (error.metadata, "Other in all clusters" in error.text) == ({"topic": "Other"}, True)


def test_a_deletion_without_hold_is_logged_and_needs_no_data_directory() -> None:
    operator = Operator(None)
    operator.fleet.register()
    with capture_logs() as logs:
        operator.call(pb.DeleteTopicRequest(force=True, topic="TopicTest", validate_only=True))
        assert operator.fleet.topics == {"TopicTest"}
        operator.call(pb.DeleteTopicRequest(force=True, topic="TopicTest", comment="old"))
    deleted, warning = logs
    expected = ("topic_deleted", "TopicTest", 1, "old")
    assert (deleted["event"], deleted["topic"], deleted["groups"], deleted["comment"]) == expected
    assert (warning["event"], warning["topics"]) == ("topics_in_use_taken", "TopicTest")
    assert operator.state.change_log.last.cause == ("DeleteTopic", "ipv4:127.0.0.1:50000", "old")


NOW = Fleet().clock.wall_millis()
BAD_REQUESTS = {
    "a wipe without a name": ("broker_name", wipe("")),
    "a wipe of an empty cluster": ("cluster_name", wipe(cluster_name="")),
    "a wipe that has ended": ("ends_at_millis", wipe(ends_at_millis=NOW)),
    "a wipe with a long comment": ("comment", wipe(comment="x" * 501)),
    "an addition with a long comment": ("comment", add(comment="x" * 501)),
    "an addition to a name with a tab": ("broker_name", add("broker\ta")),
    "a deletion with a long comment": ("comment", pb.DeleteTopicRequest(topic="TopicTest", comment="x" * 501)),
    "a deletion that ends": ("ends_at_millis", pb.DeleteTopicRequest(topic="t", ends_at_millis=NOW + 1)),
    "a hold that has ended": ("ends_at_millis", hold(ends_at_millis=1)),
    "a deletion without a topic": ("topic", pb.DeleteTopicRequest()),
    "a release without a topic": ("topic", pb.ReleaseTopicHoldRequest()),
    "a release in an empty cluster": ("cluster_name", pb.ReleaseTopicHoldRequest(topic="t", cluster_name="")),
    "a loss with a long comment": ("comment", pb.ConfirmBrokerLossRequest(comment="x" * 501)),
    "a loss of a cluster": ("cluster_name", pb.ConfirmBrokerLossRequest(cluster_name=CLUSTER)),
    "a loss of an empty name": ("broker_name", pb.ConfirmBrokerLossRequest(broker_name="")),
}


@pytest.mark.parametrize(("field", "request_"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_bad_requests_are_answered_with_the_field(operator: Operator, field: str, request_: Message) -> None:
    operator.fleet.register()
    assert operator.refused(request_, Reason.INVALID_FIELD).violations[0].field == field


def test_comments_and_ends_are_taken_up_to_their_limits(operator: Operator) -> None:
    operator.fleet.register()
    operator.call(wipe(comment="ö" * limits.MAX_COMMENT_LENGTH, ends_at_millis=NOW + 1))
    operator.call(wipe(ends_at_millis=2**63 - 1))
    assert operator.listed()[0].ends_at_millis == 2**63 - 1


def test_intents_are_listed_oldest_first_with_all_that_is_known_of_them(operator: Operator) -> None:
    operator.fleet.register()
    operator.call(hold(cluster_name=CLUSTER, comment="one", ends_at_millis=NOW + 8_000))
    operator.fleet.clock.advance(1)
    operator.call(wipe(comment="two", ends_at_millis=NOW + 9_000))
    caller = "ipv4:127.0.0.1:50000"
    assert operator.listed() == [
        pb.Intent(
            kind=pb.Intent.KIND_TOPIC_HOLD,
            cluster_name=CLUSTER,
            topic="TopicTest",
            caller=caller,
            since_millis=NOW,
            comment="one",
            ends_at_millis=NOW + 8_000,
        ),
        pb.Intent(
            kind=pb.Intent.KIND_WIPE_WRITE_PERM,
            cluster_name=CLUSTER,
            broker_name="broker-a",
            caller=caller,
            since_millis=NOW + 1_000,
            comment="two",
            ends_at_millis=NOW + 9_000,
        ),
    ]


def test_pages_of_intents_outlive_changes(operator: Operator) -> None:
    topics = [f"t{number}" for number in range(5)]
    operator.fleet.register(topics=[*topics, "later"])
    for topic in topics:
        operator.call(hold(topic))
    request = pb.ListIntentsRequest(page_size=2)
    seen: list[str] = []
    while not seen or request.page_token:
        page = operator.call(request)
        seen += [intent.topic for intent in page.intents]
        request.page_token = page.next_page_token
        if len(seen) == 2:  # what the token names goes, and so does one before it
            operator.call(pb.ReleaseTopicHoldRequest(topic="t0"))
            operator.call(pb.ReleaseTopicHoldRequest(topic="t1"))
            operator.fleet.clock.advance(1)
            operator.call(hold("later"))
    assert seen == [*topics, "later"]


def test_a_page_holds_as_many_intents_as_asked_for_up_to_the_limit(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"t{number}" for number in range(limits.DEFAULT_INTENT_PAGE_SIZE + 1)]
    operator.fleet.register(topics=topics)
    for topic in topics:
        operator.call(hold(topic))
    most = limits.DEFAULT_INTENT_PAGE_SIZE
    sizes = [len(operator.call(pb.ListIntentsRequest(page_size=size)).intents) for size in (0, 7, 10**6)]
    assert sizes == [most, 7, most + 1]
    monkeypatch.setattr(limits, "MAX_INTENT_PAGE_SIZE", 9)
    assert len(operator.call(pb.ListIntentsRequest(page_size=10)).intents) == 9


C = "127.0.0.1:30911"
READ_ONLY, READ_WRITE = (4, 4, 4, 0), (4, 4, 6, 0)


def drain(broker: str, **fields: Any) -> pb.WipeWritePermOfBrokerRequest:
    return pb.WipeWritePermOfBrokerRequest(broker_name=broker, **fields)


def delete(topic: str, *, cluster: str | None = None, **fields: Any) -> pb.DeleteTopicRequest:
    return pb.DeleteTopicRequest(topic=topic, cluster_name=cluster, **fields)


def register(operator: Operator, broker: str, addr: str, *topics: str | ReportedTopic) -> None:
    operator.fleet.register(addr, name=broker, topics=topics)


def in_use(operator: Operator, request: Message) -> list[str]:
    """The topics that a preview names, which must be those that the change is refused for."""
    preview = type(request).FromString(request.SerializeToString())
    preview.validate_only = True  # type: ignore[attr-defined]
    told = operator.call(preview).in_use
    assert told.topic_count == len(told.topics)
    if told.topics:
        error = operator.refused(request, Reason.TOPICS_IN_USE)
        assert error.metadata == {"topics": ", ".join(told.topics), "topic_count": str(len(told.topics))}
        assert error.text.endswith(f"that producers need: {', '.join(told.topics)}; set force to continue")
    return list(told.topics)


def test_a_drain_of_the_last_writable_group_is_refused_until_it_is_forced(operator: Operator) -> None:
    register(operator, "broker-a", A, "orders", "payments")
    register(operator, "broker-b", B, "orders", ("payments", READ_ONLY))
    assert in_use(operator, drain("broker-a")) == ["payments"]
    assert in_use(operator, drain("broker-b")) == []
    operator.call(drain("broker-b"))
    assert in_use(operator, drain("broker-a")) == ["orders", "payments"]
    with capture_logs() as logs:
        answer = operator.call(drain("broker-a", force=True))
    assert list(answer.in_use.topics) == ["orders", "payments"]
    assert operator.perm("orders") == 4
    (warning,) = [line for line in logs if line["log_level"] == "warning"]
    expected = ("topics_in_use_taken", "orders, payments", 2)
    assert (warning["event"], warning["topics"], warning["topic_count"]) == expected
    assert in_use(operator, drain("broker-a")) == [], "the same again takes nothing"


def test_a_group_without_a_master_is_no_other_place_to_write(operator: Operator) -> None:
    register(operator, "broker-a", A, "orders")
    register(operator, "broker-b", B, "orders")
    operator.fleet.register(C, 1, name="broker-b", topics=["orders"])
    assert in_use(operator, drain("broker-a")) == []
    operator.fleet.unregister(B, name="broker-b")
    assert in_use(operator, drain("broker-a")) == ["orders"]
    assert in_use(operator, drain("broker-b")) == [], "nobody could write there"


def test_topics_of_brokers_and_consumers_are_not_in_use_by_producers(operator: Operator) -> None:
    names = ("broker-a", CLUSTER, "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%group", "%DLQ%group", "rmq_sys_x")
    register(operator, "broker-a", A, *names)
    assert in_use(operator, drain("broker-a")) == []
    for name in names:
        assert in_use(operator, delete(name)) == []
    operator.call(drain("broker-a"))


def test_a_deletion_is_refused_while_a_broker_reports_the_topic_as_writable(operator: Operator) -> None:
    register(operator, "broker-a", A, "orders", ("old", READ_ONLY))
    operator.fleet.register(B, name="broker-b", cluster="other", topics=[("orders", READ_ONLY)])
    for hold in (False, True):
        assert in_use(operator, delete("orders", hold=hold)) == ["orders"]
        assert in_use(operator, delete("orders", hold=hold, cluster="other")) == []
        assert in_use(operator, delete("old", hold=hold)) == []
    operator.call(drain("broker-a", force=True))
    assert in_use(operator, delete("orders")) == ["orders"], "a drained group writes again when it is restored"
    operator.call(delete("orders", hold=True, force=True))
    assert in_use(operator, delete("orders", hold=True)) == []
    operator.call(pb.ReleaseTopicHoldRequest(topic="orders"))
    operator.call(delete("orders", force=True))
    assert "orders" not in operator.fleet.topics


def test_an_error_names_some_of_many_topics(operator: Operator) -> None:
    topics = [f"topic-{number:03}" for number in range(120)]
    register(operator, "broker-a", A, *topics)
    error = operator.refused(drain("broker-a"), Reason.TOPICS_IN_USE)
    assert error.metadata["topics"] == ", ".join(topics[:TOPICS_NAMED])
    assert error.metadata["topic_count"] == "120"
    assert f"{topics[TOPICS_NAMED - 1]} and 110 more;" in error.text
    preview = operator.call(drain("broker-a", validate_only=True))
    assert (preview.in_use.topic_count, list(preview.in_use.topics)) == (120, topics[:100])


@pytest.fixture
def lossy(operator: Operator) -> Operator:
    """Four groups. The guard holds three of them; one is known only from a snapshot file."""
    channels = [operator.fleet.state.open_channel() for _ in range(4)]
    for number, channel_id in enumerate(channels):
        operator.fleet.register(f"127.0.0.{number + 1}:1", name=f"broker-{number}", channel_id=channel_id)
    for channel_id in channels[:3]:
        operator.fleet.end_channel(channel_id)
    first = next(iter(operator.state.unconfirmed))
    operator.state.doubts[first] = Doubt.SNAPSHOT_FILE
    return operator


def test_without_a_name_all_that_the_guard_holds_is_confirmed_and_nothing_else(lossy: Operator) -> None:
    validated = lossy.call(pb.ConfirmBrokerLossRequest(validate_only=True))
    assert len(lossy.state.unconfirmed) == 3
    with capture_logs() as logs:
        answer = lossy.call(pb.ConfirmBrokerLossRequest(comment="fire"))
    assert answer.removed_broker_count == validated.removed_broker_count == 2
    assert answer.blast_radius == validated.blast_radius
    assert answer.blast_radius.topics_changed == 1
    assert [(line["event"], line["reason"]) for line in logs] == [("broker_removed", "LOSS_CONFIRMED")] * 2
    assert list(lossy.state.unconfirmed.values()) == [Doubt.SNAPSHOT_FILE]
    assert lossy.state.change_log.last.cause.comment == "fire"
    lossy.refused(pb.ConfirmBrokerLossRequest(), Reason.INTENT_NOT_FOUND)


def test_a_group_is_confirmed_by_its_name_whatever_keeps_it(lossy: Operator) -> None:
    names = {live.broker.broker_name for live in lossy.state.tables.broker_live_table.values() if live.unconfirmed}
    for left, name in zip((2, 1, 0), sorted(names), strict=True):
        request = pb.ConfirmBrokerLossRequest(broker_name=name, cluster_name=CLUSTER)
        assert lossy.call(request).removed_broker_count == 1
        assert len(lossy.state.unconfirmed) == left


def test_a_loss_that_nobody_suffered_is_an_error_that_names_the_group(lossy: Operator) -> None:
    error = lossy.refused(pb.ConfirmBrokerLossRequest(broker_name="broker-3"), Reason.INTENT_NOT_FOUND)
    assert error.metadata == {"broker_name": "broker-3"}
    lossy.refused(pb.ConfirmBrokerLossRequest(broker_name="broker-0", cluster_name="other"), Reason.INTENT_NOT_FOUND)
    lossy.refused(pb.ConfirmBrokerLossRequest(broker_name="nobody"), Reason.INTENT_NOT_FOUND)
