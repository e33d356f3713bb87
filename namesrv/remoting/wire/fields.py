"""Fields of request headers, read by their type. All of them travel as text."""

from __future__ import annotations

import re
from functools import lru_cache

from namesrv.app.field_rules import ADDRESS, NAME, check
from namesrv.core.errors import invalid_field
from namesrv.core.model import BrokerKey
from namesrv.remoting.wire.codes import STANDARD_JSON_VERSION
from namesrv.remoting.wire.headers import Request

INT_BITS, LONG_BITS = 32, 64
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
KNOWN_BROKERS = 16_384
"""Names of brokers that are not checked again: they come with each request of a broker. Some 10 MB at most."""


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


def number(request: Request, name: str, bits: int) -> int:
    """Returns a whole number; 0 if the field is missing or is no number of so many bits, as in RocketMQ."""
    found = _number(request.fields.get(name, ""), bits)
    return 0 if found is None else found


def _number(text: str, bits: int) -> int | None:
    value = int(text) if _NUMBER.fullmatch(text) else None
    return None if value is None or not -(1 << bits - 1) <= value < 1 << bits - 1 else value


def switch(request: Request, name: str) -> bool | None:
    """Returns whether the field is "true" in any case, or None if it is missing."""
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
    value = _number(request.fields.get("brokerId", ""), LONG_BITS)
    if value is None:
        raise invalid_field("brokerId", f"is {request.fields.get('brokerId')!r:.40}, not a number of {LONG_BITS} bits")
    return value


def broker_addr(request: Request) -> str:
    """The address of the broker that a request is about. Raises INVALID_FIELD."""
    addr = text(request, "brokerAddr")
    check(("brokerAddr", addr, ADDRESS))
    return addr


def is_address(text: str) -> bool:
    """Reports whether a text is an address that a client could connect to."""
    return ADDRESS.problem(text) is None


@lru_cache(KNOWN_BROKERS)
def _checked_broker(cluster_name: str, broker_name: str) -> BrokerKey:
    check(("clusterName", cluster_name, NAME), ("brokerName", broker_name, NAME))
    return BrokerKey(cluster_name, broker_name)
