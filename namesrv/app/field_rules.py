"""Rules for fields that requests of several services have: names, addresses."""

from __future__ import annotations

from groundwork import topic_names
from groundwork.endpoints import Endpoint
from namesrv import limits
from namesrv.core.errors import invalid_field, limit_exceeded


def check_topic(field: str, topic: str) -> None:
    """Checks a topic name. Raises INVALID_FIELD."""
    try:
        topic_names.check_topic(topic)
    except ValueError as error:
        raise invalid_field(field, str(error)) from None


def check_name(field: str, name: str) -> None:
    """Checks the name of a cluster, a broker or a zone. Raises INVALID_FIELD."""
    try:
        topic_names.check_name(name)
    except ValueError as error:
        raise invalid_field(field, str(error)) from None


def check_address(field: str, address: str) -> None:
    """Checks that a text is host:port. Raises INVALID_FIELD."""
    if not address:
        raise invalid_field(field, "is empty; write host:port")
    try:
        Endpoint.parse(address)
    except ValueError as error:
        raise invalid_field(field, str(error)) from None


def check_topic_count(count: int) -> None:
    """Checks the number of topics of a registration. Raises LIMIT_EXCEEDED."""
    if count > limits.MAX_TOPICS_PER_REGISTRATION:
        raise limit_exceeded("topics of one registration", count, limits.MAX_TOPICS_PER_REGISTRATION)
