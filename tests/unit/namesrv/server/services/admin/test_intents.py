"""The calls by which operators decide: what is refused, what is the same again, and how pages outlive changes."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb
from structlog.testing import capture_logs

from namesrv import limits
from namesrv.core.errors import Reason
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.unit.namesrv.worlds.operator_calls import Operator, operator

__all__ = ["operator"]  # pytest finds the fixture by its name in this module


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
    assert [(intent.comment, intent.HasField("ends_at_millis")) for intent in operator.listed()] == [
        ("legal hold", False),
        ("new disks", True),
    ]
    operator.call(hold(comment="another"))
    assert operator.listed()[0].comment == "another"


def test_a_hold_may_end_by_itself_and_a_deletion_without_one_may_not(operator: Operator) -> None:
    operator.fleet.register(topics=["TopicTest"])
    ends_at = operator.fleet.clock.wall_millis() + 7_200_000
    operator.call(hold(ends_at_millis=ends_at))
    assert [intent.ends_at_millis for intent in operator.listed()] == [ends_at]
    for request in (
        pb.DeleteTopicRequest(force=True, topic="TopicTest", ends_at_millis=ends_at),
        hold(ends_at_millis=1),
    ):
        assert "ends_at_millis" in str(operator.refused(request, Reason.INVALID_FIELD))


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
    assert operator.listed() == []
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
    assert operator.call(pb.ReleaseTopicHoldRequest(topic="TopicTest")).restored_queue_data_count == 1
    assert operator.fleet.topics == {"TopicTest"}


def test_topics_and_holds_that_are_not_there_are_errors(operator: Operator) -> None:
    operator.fleet.register()
    operator.refused(pb.DeleteTopicRequest(force=True, topic="Other"), Reason.TOPIC_NOT_FOUND)
    missing = operator.refused(
        pb.DeleteTopicRequest(force=True, topic="TopicTest", cluster_name="x"), Reason.TOPIC_NOT_FOUND
    )
    assert missing.text == "no topic route info in this name server for the topic 'TopicTest' in cluster 'x'"
    assert missing.metadata == {"topic": "TopicTest", "cluster_name": "x"}
    operator.call(hold())
    error = operator.refused(pb.ReleaseTopicHoldRequest(topic="TopicTest", cluster_name="x"), Reason.INTENT_NOT_FOUND)
    assert error.metadata == {"topic": "TopicTest", "cluster_name": "x"}
    assert "TopicTest in cluster x" in error.text
    error = operator.refused(pb.ReleaseTopicHoldRequest(topic="Other"), Reason.INTENT_NOT_FOUND)
    assert (error.metadata, "Other in all clusters" in error.text) == ({"topic": "Other"}, True)


def test_a_deletion_without_hold_is_logged_and_its_validation_is_not(operator: Operator) -> None:
    operator.fleet.register()
    with capture_logs() as logs:
        operator.call(pb.DeleteTopicRequest(force=True, topic="TopicTest", validate_only=True))
        assert operator.fleet.topics == {"TopicTest"}
        operator.call(pb.DeleteTopicRequest(force=True, topic="TopicTest", comment="old"))
    deleted, warning = logs
    assert (deleted["event"], deleted["topic"], deleted["groups"], deleted["comment"]) == (
        "topic_deleted",
        "TopicTest",
        1,
        "old",
    )
    assert (warning["event"], warning["topics"]) == ("topics_in_use_taken", "TopicTest")
    assert operator.state.change_log.last.cause == ("DeleteTopic", "ipv4:127.0.0.1:50000", "old")


def test_validations_change_nothing_and_need_no_data_directory_but_intents_do() -> None:
    operator = Operator(None)
    operator.fleet.register()
    revision = operator.state.revision
    for validation in (wipe(validate_only=True), add(validate_only=True), hold(validate_only=True)):
        assert operator.call(validation).header.revision == revision
    for intent in (wipe(), add(), hold()):
        operator.refused(intent, Reason.NO_DATA_DIR)
    assert operator.call(pb.DeleteTopicRequest(force=True, topic="TopicTest")).removed_queue_data_count == 1


NOW = Fleet().clock.wall_millis()
BAD_REQUESTS = {
    "a wipe without a name": ("broker_name", wipe("")),
    "a wipe of an empty cluster": ("cluster_name", wipe(cluster_name="")),
    "a wipe that has ended": ("ends_at_millis", wipe(ends_at_millis=NOW)),
    "a wipe that ends before 1970": ("ends_at_millis", wipe(ends_at_millis=-1)),
    "a wipe with a long comment": ("comment", wipe(comment="x" * 501)),
    "an addition with a long comment": ("comment", add(comment="x" * 501)),
    "an addition to a name with a tab": ("broker_name", add("broker\ta")),
    "a deletion with a long comment": (
        "comment",
        pb.DeleteTopicRequest(force=True, topic="TopicTest", comment="x" * 501),
    ),
    "a deletion without a topic": ("topic", pb.DeleteTopicRequest()),
    "a release without a topic": ("topic", pb.ReleaseTopicHoldRequest()),
    "a release in an empty cluster": ("cluster_name", pb.ReleaseTopicHoldRequest(topic="t", cluster_name="")),
    "a loss with a long comment": ("comment", pb.ConfirmBrokerLossRequest(comment="x" * 501)),
    "a loss of a cluster": ("cluster_name", pb.ConfirmBrokerLossRequest(cluster_name=CLUSTER)),
    "a loss of an empty name": ("broker_name", pb.ConfirmBrokerLossRequest(broker_name="")),
    "a negative page": ("page_size", pb.ListIntentsRequest(page_size=-1)),
    "a page token that is none": ("page_token", pb.ListIntentsRequest(page_token="!")),
    "a page token of another list": ("page_token", pb.ListIntentsRequest(page_token="VG9waWM=")),
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
    operator.call(hold(cluster_name=CLUSTER, comment="one"))
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


def test_a_page_holds_as_many_intents_as_asked_for_up_to_the_limit(operator: Operator) -> None:
    topics = [f"t{number}" for number in range(limits.DEFAULT_INTENT_PAGE_SIZE + 1)]
    operator.fleet.register(topics=topics)
    for topic in topics:
        operator.call(hold(topic))
    sizes = {size: len(operator.call(pb.ListIntentsRequest(page_size=size)).intents) for size in (0, 7, 10**6)}
    assert sizes == {0: limits.DEFAULT_INTENT_PAGE_SIZE, 7: 7, 10**6: len(topics)}
