"""Rules of fields. A request is checked by a table: the name, the value and the rule of each field."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import Message

from namesrv import limits
from namesrv.core.errors import FieldProblems, invalid_field, limit_exceeded
from namesrv_common import topic_names
from namesrv_common.endpoints import Endpoint

KNOWN_ADDRESSES = 16_384
"""Addresses that are not parsed again: every registration of a broker has the same. Some 10 MB at most."""


class Rule(NamedTuple):
    """What a value must be."""

    problem: Callable[[Any], str | None]
    """Returns what is wrong with a value, or None."""
    missing: str | None = None
    """The problem of an absent field, or None if it may be absent."""


def _parsed_by(parse: Callable[[str], object]) -> Callable[[str], str | None]:
    def problem(text: str) -> str | None:
        try:
            parse(text)
        except ValueError as error:
            return str(error)
        return None

    return problem


def between(lowest: int, highest: int) -> Rule:
    return Rule(lambda value: None if lowest <= value <= highest else f"is {value}, must be {lowest} to {highest}")


def at_most(most: int, unit: str, size_of: Callable[[str], int] = len) -> Callable[[str], str | None]:
    """Bounds the size of a text."""

    def problem(text: str) -> str | None:
        size = size_of(text)
        return f"has {size} {unit}, at most {most}" if size > most else None

    return problem


_kv_name_problem = at_most(limits.MAX_KV_NAME_BYTES, "bytes", lambda text: len(text.encode()))
_endpoint_problem = _parsed_by(lru_cache(KNOWN_ADDRESSES)(Endpoint.parse))  # caches no long text: that is an error

TOPIC = Rule(_parsed_by(topic_names.check_topic))
NAME = Rule(_parsed_by(topic_names.check_name))
"""The name of a cluster, a broker group or a zone."""
PREFIX = Rule(lambda text: TOPIC.problem(text) if text else None)
"""The beginning of topic names; all topics begin with the empty one."""
ADDRESS = Rule(lambda text: _endpoint_problem(text) if text else "is empty; write host:port")
NOT_NEGATIVE = Rule(lambda number: f"is {number}, must not be negative" if number < 0 else None)
COMMENT = Rule(at_most(limits.MAX_COMMENT_LENGTH, "characters"))
KV_NAME = Rule(lambda text: _kv_name_problem(text) if text else "is empty")
"""A namespace or key of the KV configuration; like RocketMQ, allows all characters."""
ANYTHING = Rule(lambda _: None)
PROBLEM = Rule(str)
"""For rules between fields: its value is what is wrong with them, or None."""

Row = tuple[str, Any, Rule]
"""The name of a field, its value, which is None if the field is absent, and its rule."""


def check(*rows: Row) -> None:
    """Checks fields by their rules. Raises INVALID_FIELD with all violations."""
    check_all(rows)


def check_all(rows: Iterable[Row]) -> None:
    """Checks any number of fields, each when the iterable yields it."""
    problems = FieldProblems()
    for field, value, rule in rows:
        problem = rule.missing if value is None else rule.problem(value)
        if problem is not None:
            problems.add(invalid_field(field, problem))
    problems.raise_any()


def given(message: Message, field: str) -> Any:
    """Returns the value of an optional field, or None if the message does not have it."""
    return getattr(message, field) if message.HasField(field) else None


def check_topic_count(count: int) -> None:
    """Checks the number of topics of a registration. Raises LIMIT_EXCEEDED."""
    if count > limits.MAX_TOPICS_PER_REGISTRATION:
        raise limit_exceeded("topics of one registration", count, limits.MAX_TOPICS_PER_REGISTRATION)
