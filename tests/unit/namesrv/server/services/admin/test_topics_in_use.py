"""Changes that stop producers of an application: refused until their caller says that it is meant."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb
from structlog.testing import capture_logs

from namesrv.core.errors import Reason
from namesrv.core.model import ReportedTopic
from namesrv.core.operator_changes import TOPICS_NAMED
from tests.support.core_fleet import CLUSTER, A, B
from tests.unit.namesrv.worlds.operator_calls import Operator, operator

__all__ = ["operator"]  # pytest finds the fixture by its name in this module

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
    assert (warning["event"], warning["topics"], warning["topic_count"]) == (
        "topics_in_use_taken",
        "orders, payments",
        2,
    )
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


@pytest.mark.parametrize("request_", [drain("broker-a"), delete("orders")], ids=["drain", "delete"])
def test_a_refusal_says_what_to_do(operator: Operator, request_: Message) -> None:
    register(operator, "broker-a", A, "orders")
    text = operator.refused(request_, Reason.TOPICS_IN_USE).text
    assert text == "1 application topic would lose queues that producers need: orders; set force to continue"


def test_a_decision_about_what_is_absent_needs_no_force(operator: Operator) -> None:
    operator.call(pb.WipeWritePermOfBrokerRequest(broker_name="broker-a", cluster_name=CLUSTER))
    operator.call(delete("orders", hold=True))
    register(operator, "broker-a", A, "orders", "payments")
    assert operator.perm("payments") == 4
