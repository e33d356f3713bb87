"""Attributes that a topic can have, and their changes (RocketMQ 5: TopicAttributes, AttributeUtil)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker_agent.rpc_errors import InvalidField

SET_FIELD, DELETE_FIELD = "set_attributes", "delete_attributes"
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute that topics can have."""

    values: frozenset[str]
    """The values that it can have."""
    changeable: bool
    """Whether a topic that exists may get, change or lose it."""


ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(frozenset({"SimpleCQ", "BatchCQ"}), changeable=False),
    "cleanup.policy": Attribute(frozenset({"DELETE", "COMPACTION"}), changeable=False),
    "message.type": Attribute(
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE"}), changeable=True
    ),
}
"""All attributes by name. reserve.time is missing: RocketMQ refuses it, too, without a tiered store."""


def altered_attributes(
    current: Mapping[str, str] | None,
    to_set: Mapping[str, str],
    to_delete: Iterable[str],
    *,
    create: bool,
    known: Mapping[str, Attribute] = ATTRIBUTES,
) -> Mapping[str, str] | None:
    """A topic's attributes after a change.

    Args:
        current: Its attributes before; None if it has no such field.
        to_set: Attributes to set, with their values.
        to_delete: Attributes to take away; the topic must have them.
        create: Whether the topic is new: then any attribute can be set and none taken away.
        known: What attributes there are.

    Raises:
        InvalidField: An attribute is not known, may not change, cannot have this value, is not there to be taken away,
            or is named twice.
    """
    after = dict(current or {})
    for key, value in to_set.items():
        attribute = _alterable(f"{SET_FIELD}[{_shown(key)}]", key, known, create=create)
        if value not in attribute.values:
            rule = " or ".join(sorted(attribute.values))
            raise InvalidField(f"{SET_FIELD}[{_shown(key)}]", f"is {_shown(value)}, must be {rule}")
        after[key] = value
    seen = set(to_set)
    for index, key in enumerate(to_delete):
        field = f"{DELETE_FIELD}[{index}]"
        if key in seen:
            raise InvalidField(field, f"is {_shown(key)}, which the request names twice")
        seen.add(key)
        if create:
            raise InvalidField(field, f"is {_shown(key)}: a new topic has nothing to take away")
        if key not in after:
            raise InvalidField(field, f"is {_shown(key)}, which the topic does not have")
        _alterable(field, key, known, create=create)
        del after[key]
    return after if after or current is not None else None


def _alterable(field: str, key: str, known: Mapping[str, Attribute], *, create: bool) -> Attribute:
    attribute = known.get(key)
    if attribute is None:
        raise InvalidField(field, f"is no attribute of a topic; there are {', '.join(sorted(known))}")
    if not create and not attribute.changeable:
        raise InvalidField(field, f"is {_shown(key)}, which cannot change once the topic is there")
    return attribute


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."
