"""Scenario 77 of RocketMQ's tests, for the attributes of topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from broker_agent.errors import Reason
from broker_agent.topics.topic_service import Attribute, altered_attributes
from tests.support.refusals import refuses

KNOWN = {
    "enum": Attribute(frozenset({"one", "two"}), changeable=True),
    "other": Attribute(frozenset({"yes", "no"}), changeable=True),
    "fixed": Attribute(frozenset({"yes", "no"}), changeable=False),
}


def test_a_new_topic_can_have_any_attribute_also_one_that_never_changes() -> None:
    after = altered_attributes(None, {"enum": "one", "fixed": "no"}, (), create=True, known=KNOWN)
    assert after == {"enum": "one", "fixed": "no"}


def test_attributes_are_added_changed_and_taken_away() -> None:
    current = {"enum": "one", "fixed": "no"}
    after = altered_attributes(current, {"enum": "two", "other": "yes"}, (), create=False, known=KNOWN)
    assert after == {"enum": "two", "other": "yes", "fixed": "no"}
    assert altered_attributes(after, {}, ["other"], create=False, known=KNOWN) == {"enum": "two", "fixed": "no"}
    assert current == {"enum": "one", "fixed": "no"}


def test_a_topic_without_attributes_gets_no_empty_field_and_one_with_it_keeps_it() -> None:
    assert altered_attributes(None, {}, (), create=False) is None
    assert altered_attributes({}, {}, (), create=False) == {}
    assert altered_attributes({"enum": "one"}, {}, ["enum"], create=False, known=KNOWN) == {}


@pytest.mark.parametrize(
    ("create", "to_set", "to_delete", "problem"),
    [
        (
            True,
            {"nothing": "x"},
            [],
            "set_attributes['nothing']: is no attribute of a topic; there are enum, fixed, other",
        ),
        (True, {"enum": "three"}, [], "set_attributes['enum']: is 'three', must be one or two"),
        (True, {}, ["enum"], "delete_attributes[0]: is 'enum': a new topic has nothing to take away"),
        (
            False,
            {"fixed": "yes"},
            [],
            "set_attributes['fixed']: is 'fixed', which cannot change once the topic is there",
        ),
        (False, {}, ["fixed"], "delete_attributes[0]: is 'fixed', which cannot change once the topic is there"),
        (False, {}, ["other"], "delete_attributes[0]: is 'other', which the topic does not have"),
        (False, {}, ["enum", "enum"], "delete_attributes[1]: is 'enum', which the request names twice"),
        (False, {"enum": "two"}, ["enum"], "delete_attributes[0]: is 'enum', which the request names twice"),
        (False, {"": "two"}, [], "set_attributes['']: is no attribute of a topic"),
        (False, {"+enum": "two"}, [], "set_attributes['+enum']: is no attribute of a topic"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(
    create: bool, to_set: Mapping[str, str], to_delete: Sequence[str], problem: str
) -> None:
    current = None if create else {"enum": "one", "fixed": "no"}
    with refuses(Reason.INVALID_FIELD) as raised:
        altered_attributes(current, to_set, to_delete, create=create, known=KNOWN)
    assert problem in str(raised.value)


def test_rocketmqs_own_attributes_are_known() -> None:
    attributes = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION", "message.type": "FIFO"}
    assert altered_attributes(None, attributes, (), create=True) == attributes
    assert altered_attributes(attributes, {"message.type": "DELAY"}, (), create=False) == attributes | {
        "message.type": "DELAY"
    }
