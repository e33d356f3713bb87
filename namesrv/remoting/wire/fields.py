"""Fields of request headers, read by their type. All of them travel as text."""

from __future__ import annotations

import re
from functools import lru_cache

from namesrv.app import field_rules
from namesrv.core.errors import invalid_field
from namesrv.core.model import BrokerKey
from namesrv.remoting.wire.codes import STANDARD_JSON_VERSION
from namesrv.remoting.wire.headers import Request

_NUMBER = re.compile(r"-?\d{1,19}")
_MASTERS_TO_COME = -1
"""The id with which a group of DLedger registers before it has chosen its master."""
_HIGHEST_ID = 2**63 - 1
KNOWN_BROKERS = 16_384
"""Names and addresses of brokers that are not checked again: they come with each word of a broker. Some 10 MB at most
of each."""


def text(request: Request, name: str) -> str:
    """A field that must be there. Raises INVALID_FIELD."""
    if not request.fields.get(name):
        raise invalid_field(name, "is missing")
    return text_or_empty(request, name)


def text_or_empty(request: Request, name: str) -> str:
    """A field that must be there, and may be empty. Raises INVALID_FIELD, also if it has halves of characters."""
    value = request.fields.get(name)
    if value is None:
        raise invalid_field(name, "is missing")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid_field(name, "has characters that are none") from None
    return value


def number(request: Request, name: str, default: int = 0) -> int:
    """A whole number; the default if the field is not there. Raises INVALID_FIELD."""
    value = request.fields.get(name)
    if not value:
        return default
    if not _NUMBER.fullmatch(value):
        raise invalid_field(name, f"is {value[:40]!r}, not a number")
    return int(value)


def switch(request: Request, name: str) -> bool | None:
    """A switch: on if the field is "true" in any case; None if it is not there."""
    value = request.fields.get(name)
    return None if value is None else value.lower() == "true"


def bare_keys(request: Request) -> bool:
    """Whether its sender wants numbers as keys of JSON without quotes."""
    return request.version < STANDARD_JSON_VERSION and not switch(request, "acceptStandardJsonOnly")


def broker(request: Request) -> BrokerKey:
    """The broker group that a request is about. Raises INVALID_FIELD."""
    return _checked_broker(text(request, "clusterName"), text(request, "brokerName"))


def broker_id(request: Request) -> int:
    """The broker id of a request. Raises INVALID_FIELD."""
    value = number(request, "brokerId", _MASTERS_TO_COME - 1)
    if not _MASTERS_TO_COME <= value <= _HIGHEST_ID:
        raise invalid_field("brokerId", f"is {request.fields.get('brokerId')!r}, must be -1 or higher")
    return value


def broker_addr(request: Request) -> str:
    """The address of the broker that a request is about. Raises INVALID_FIELD."""
    return _checked_address("brokerAddr", text(request, "brokerAddr"))


def ha_server_addr(request: Request) -> str | None:
    """The address for slaves of the broker that a request is about; None if it has none. Raises INVALID_FIELD."""
    address = request.fields.get("haServerAddr")
    return _checked_address("haServerAddr", address) if address else None


@lru_cache(KNOWN_BROKERS)
def _checked_broker(cluster_name: str, broker_name: str) -> BrokerKey:
    field_rules.check_name("clusterName", cluster_name)
    field_rules.check_name("brokerName", broker_name)
    return BrokerKey(cluster_name, broker_name)


@lru_cache(KNOWN_BROKERS)
def _checked_address(name: str, address: str) -> str:
    field_rules.check_address(name, address)
    return address
