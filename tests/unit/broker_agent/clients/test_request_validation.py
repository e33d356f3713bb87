from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients import client_service, limits
from broker_agent.errors import Reason
from tests.support.refusals import refuses

Change = Callable[[pb.HeartbeatRequest], Any]


def request() -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        client_id="10.0.0.1@one",
        language="GO",
        version="5.3.0",
        producer_groups=[pb.ProducerData(group_name="producers")],
        consumer_groups=[
            pb.ConsumerData(
                group_name="consumers",
                consume_type=pb.CONSUME_TYPE_POP,
                message_model=pb.MESSAGE_MODEL_CLUSTERING,
                consume_from_where=pb.CONSUME_FROM_WHERE_TIMESTAMP,
                subscriptions=[
                    pb.SubscriptionData(topic="A", expression="*", sub_version=3),
                    pb.SubscriptionData(topic="B", expression="a > 5", expression_type=pb.EXPRESSION_TYPE_SQL92),
                ],
            )
        ],
    )


def _set(path: str, value: object) -> Change:
    """Sets a field such as ``consumer_groups[0].group_name``."""

    def change(message: Any) -> None:
        *parents, name = path.replace("[0]", ".0").replace("[1]", ".1").split(".")
        for part in parents:
            message = message[int(part)] if part.isdigit() else getattr(message, part)
        setattr(message, name, value)

    return change


CONSUMER = "consumer_groups[0]"


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("client_id", "", "is empty"),
        ("client_id", "x" * 256, "has 256 bytes, at most 255"),
        ("client_id", "a\nb", "cannot be printed"),
        ("language", "x" * 65, "has 65 bytes, at most 64"),
        ("producer_groups[0].group_name", "", "is empty"),
        (f"{CONSUMER}.group_name", "x" * 256, "has 256 bytes, at most 255"),
        (f"{CONSUMER}.consume_type", 0, "is not set"),
        (f"{CONSUMER}.message_model", 0, "is not set"),
        (f"{CONSUMER}.consume_from_where", 0, "is not set"),
        (f"{CONSUMER}.subscriptions[1].topic", "a\tb", "has characters that are not printable"),
        (f"{CONSUMER}.subscriptions[0].expression", "x" * 4097, "has 4097 bytes, at most 4096"),
        (f"{CONSUMER}.subscriptions[0].expression_type", 7, "is 7, which this version does not know"),
    ],
)
def test_a_field_that_breaks_its_rule_is_named_with_the_problem(field: str, value: object, problem: str) -> None:
    message = request()
    _set(field, value)(message)
    with refuses(Reason.INVALID_FIELD) as refused:
        client_service.check_heartbeat(message)
    assert refused.value.violations[0].field == field
    assert problem in refused.value.violations[0].description


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client_id", "x" * 255),
        ("language", "x" * 64),
        (f"{CONSUMER}.group_name", "x" * 255),
        (f"{CONSUMER}.subscriptions[0].expression", "x" * 4096),
        (f"{CONSUMER}.subscriptions[0].topic", "%RETRY%" + "x" * 248),
    ],
)
def test_a_field_at_its_limit_is_taken(field: str, value: str) -> None:
    message = request()
    _set(field, value)(message)
    client_service.check_heartbeat(message)


def test_groups_and_subscriptions_are_taken_up_to_the_limit_and_not_beyond() -> None:
    message = request()
    for number in range(limits.MAX_GROUPS_PER_HEARTBEAT - 1):
        message.producer_groups.add(group_name=f"p{number}")
    for number in range(limits.MAX_SUBSCRIPTIONS - 2):
        message.consumer_groups[0].subscriptions.add(topic=f"t{number}")
    client_service.check_heartbeat(message)
    message.consumer_groups[0].subscriptions.add(topic="one-more")
    with refuses(Reason.LIMIT_EXCEEDED, match="subscriptions of one consumer group: 301 is over the limit of 300"):
        client_service.check_heartbeat(message)
    message.producer_groups.add(group_name="one-more")
    with refuses(Reason.LIMIT_EXCEEDED, match="producer groups of one heartbeat: 101 is over the limit of 100"):
        client_service.check_heartbeat(message)
