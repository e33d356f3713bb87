"""Scenario 77 of RocketMQ's tests, for the attributes of topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from broker_agent.errors import Reason
from broker_agent.topics.topic_service import altered_attributes
from tests.support.refusals import refuses

FIXED = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION"}
ALL = FIXED | {"message.type": "FIFO"}


def test_a_new_topic_can_have_any_attribute_of_rocketmq() -> None:
    assert altered_attributes(None, ALL, (), create=True) == ALL


def test_attributes_are_added_changed_and_taken_away() -> None:
    current = dict(FIXED)
    added = altered_attributes(current, {"message.type": "FIFO"}, (), create=False)
    assert added == ALL
    assert altered_attributes(added, {"message.type": "DELAY"}, (), create=False) == ALL | {"message.type": "DELAY"}
    assert altered_attributes(added, {}, ["message.type"], create=False) == current == FIXED


def test_only_a_topic_with_the_field_has_empty_attributes() -> None:
    assert altered_attributes(None, {}, (), create=False) is None
    assert altered_attributes({}, {}, (), create=False) == {}
    assert altered_attributes({"message.type": "FIFO"}, {}, ["message.type"], create=False) == {}


UNKNOWN = "is no attribute of a topic; there are cleanup.policy, message.type, queue.type"
NEVER_CHANGES = "is 'queue.type', which cannot change once the topic is there"
TWICE = "is 'message.type', which the request names twice"


@pytest.mark.parametrize(
    ("create", "to_set", "to_delete", "problem"),
    [
        (True, {"nothing": "x"}, [], f"set_attributes['nothing']: {UNKNOWN}"),
        (True, {"queue.type": "x"}, [], "set_attributes['queue.type']: is 'x', must be BatchCQ or SimpleCQ"),
        (True, {}, ["message.type"], "delete_attributes[0]: is 'message.type': a new topic has nothing to take away"),
        (False, {"queue.type": "SimpleCQ"}, [], f"set_attributes['queue.type']: {NEVER_CHANGES}"),
        (False, {}, ["queue.type"], f"delete_attributes[0]: {NEVER_CHANGES}"),
        (False, {}, ["other"], "delete_attributes[0]: is 'other', which the topic does not have"),
        (False, {}, ["message.type", "message.type"], f"delete_attributes[1]: {TWICE}"),
        (False, {"message.type": "DELAY"}, ["message.type"], f"delete_attributes[0]: {TWICE}"),
        (False, {"": "x"}, [], f"set_attributes['']: {UNKNOWN}"),
        (False, {"+message.type": "FIFO"}, [], f"set_attributes['+message.type']: {UNKNOWN}"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(
    create: bool, to_set: Mapping[str, str], to_delete: Sequence[str], problem: str
) -> None:
    with refuses(Reason.INVALID_FIELD) as raised:
        altered_attributes(None if create else ALL, to_set, to_delete, create=create)
    assert problem in str(raised.value)
