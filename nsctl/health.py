"""What the messages of the contract say of health, in words that commands and console share."""

from __future__ import annotations

import re
from collections.abc import Mapping

from namesrv_api.v1 import admin_service_pb2, route_data_pb2

LATE_SHARE = 0.5
"""A broker that has used up this share of its timeout is late: its agent has missed registrations."""

INVOLUNTARY = frozenset(
    {
        route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED,
        route_data_pb2.REMOVAL_REASON_EXPIRED,
        route_data_pb2.REMOVAL_REASON_BROKER_DOWN,
        route_data_pb2.REMOVAL_REASON_LOSS_CONFIRMED,
    }
)
"""Reasons of removals that neither the broker nor an operator asked for at that moment."""

INTENT_WORDS: Mapping[int, str] = {
    admin_service_pb2.Intent.KIND_WIPE_WRITE_PERM: "drain",
    admin_service_pb2.Intent.KIND_ADD_WRITE_PERM: "write permission given",
    admin_service_pb2.Intent.KIND_TOPIC_HOLD: "topic hold",
}
"""Kinds of intent in words for people."""


def caller_of(caller: str) -> str:
    """A caller without the port of its connection, which differs at each name server."""
    return re.sub(r"\Aipv[46]:(.+):[0-9]+\Z", r"\1", caller)
