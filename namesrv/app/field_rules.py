"""Rules for fields that requests of several services have: names, addresses, page sizes."""

from __future__ import annotations

from typing import Protocol

from groundwork import topic_names
from groundwork.endpoints import Endpoint
from namesrv import limits
from namesrv.core.errors import InvalidField, NotImplementedYet


class _HasFields(Protocol):
    def HasField(self, field_name: str, /) -> bool: ...  # noqa: N802


def check_topic(field: str, topic: str) -> None:
    """Checks a topic name. Raises InvalidField."""
    try:
        topic_names.check_topic(topic)
    except ValueError as error:
        raise InvalidField(field, str(error)) from None


def check_name(field: str, name: str) -> None:
    """Checks the name of a cluster, a broker or a zone. Raises InvalidField."""
    try:
        topic_names.check_name(name)
    except ValueError as error:
        raise InvalidField(field, str(error)) from None


def check_address(field: str, address: str) -> None:
    """Checks that a text is host:port. Raises InvalidField."""
    if not address:
        raise InvalidField(field, "is empty; write host:port")
    try:
        Endpoint.parse(address)
    except ValueError as error:
        raise InvalidField(field, str(error)) from None


def page_size(value: int) -> int:
    """The page size in force. Raises InvalidField."""
    if value < 0:
        raise InvalidField("page_size", f"is {value}, must not be negative")
    return min(value, limits.MAX_PAGE_SIZE) or limits.DEFAULT_PAGE_SIZE


def refuse_fields(message: _HasFields, *fields: str) -> None:
    """Refuses fields that this version does not have yet, rather than passing over them. Raises NotImplementedYet."""
    for field in fields:
        try:
            present = message.HasField(field)
        except ValueError:  # a field without presence
            present = bool(getattr(message, field))
        if present:
            raise NotImplementedYet(f"{field}: this version of the name server does not have it yet", {"field": field})
