"""ExplainTopicRoute as a call: what its answer carries, refuses and is bounded by."""

from __future__ import annotations

import asyncio

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.core.changes import Cause
from namesrv.core.errors import InvalidField, LimitExceeded
from namesrv.core.explain import MAX_TEXT_LENGTH
from namesrv.core.model import HoldKey, Intent, IntentKind
from namesrv.core.slices import run_sync
from namesrv.grpc_api.admin import ExplainCalls
from tests.support.core_fleet import CLUSTER, B, Fleet
from tests.unit.namesrv.explaining import CONTEXT, STARTED_AT, T0_MILLIS, only


def call(fleet: Fleet, request: pb.ExplainTopicRouteRequest) -> pb.ExplainTopicRouteResponse:
    return asyncio.run(ExplainCalls(fleet.manager, STARTED_AT).ExplainTopicRoute(request, CONTEXT))


def test_the_answer_carries_all_that_is_known(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b")
    fleet.unregister()
    answer = call(fleet, pb.ExplainTopicRouteRequest(topic="TopicTest"))
    assert answer.header == fleet.manager.header()
    gone, present = answer.explanations
    assert (gone.cluster_name, gone.broker_name, gone.in_route) == (CLUSTER, "broker-a", False)
    assert gone.removal_reason == route_data_pb2.REMOVAL_REASON_UNREGISTERED
    assert (gone.since_millis, present.since_millis) == (T0_MILLIS, T0_MILLIS)
    assert present == pb.RouteExplanation(
        cluster_name=CLUSTER,
        broker_name="broker-b",
        in_route=True,
        explanation="in the route with 4 queues to read and 4 queues to write",
        since_millis=T0_MILLIS,
    )


def test_what_is_not_known_is_absent_from_the_answer(fleet: Fleet) -> None:
    request = pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name="broker-x")
    (explanation,) = call(fleet, request).explanations
    assert not explanation.HasField("since_millis")
    assert explanation.removal_reason == route_data_pb2.REMOVAL_REASON_UNSPECIFIED


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("topic", pb.ExplainTopicRouteRequest()),
        ("topic", pb.ExplainTopicRouteRequest(topic="no topic")),
        ("broker_name", pb.ExplainTopicRouteRequest(topic="T", broker_name="")),
        ("broker_name", pb.ExplainTopicRouteRequest(topic="T", cluster_name="c")),
        ("cluster_name", pb.ExplainTopicRouteRequest(topic="T", broker_name="b", cluster_name="")),
        ("zone_name", pb.ExplainTopicRouteRequest(topic="T", zone_name="no zone")),
    ],
)
def test_a_bad_field_is_refused_by_name(fleet: Fleet, field: str, request_: pb.ExplainTopicRouteRequest) -> None:
    with pytest.raises(InvalidField) as caught:
        call(fleet, request_)
    assert caught.value.field == field


def test_an_answer_tells_of_so_many_groups_and_not_of_one_more(fleet: Fleet) -> None:
    request = pb.ExplainTopicRouteRequest(topic="Unknown")
    for number in range(limits.MAX_EXPLANATIONS + 1):
        if number == limits.MAX_EXPLANATIONS:
            assert len(call(fleet, request).explanations) == limits.MAX_EXPLANATIONS
        fleet.register(f"10.0.{number // 250}.{number % 250}:1", name=f"b-{number}", topics=[])
    with pytest.raises(LimitExceeded, match="broker_name"):
        call(fleet, request)


def test_an_answer_of_the_longest_texts_is_below_what_clients_take() -> None:
    row = pb.RouteExplanation(
        cluster_name="c" * 127,
        broker_name="b" * 127,
        in_route=True,
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
    run_sync(fleet.manager.delete_topic("TopicTest", None, cause))
    assert len(only(fleet).text) < MAX_TEXT_LENGTH
    run_sync(fleet.manager.publish_intents(fleet.manager.intents.with_intent(hold_all), cause))
    text = only(fleet).text
    assert len(text) == MAX_TEXT_LENGTH
    assert text.endswith("...")
