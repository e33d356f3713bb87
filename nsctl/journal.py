"""What the journal's entries say of brokers that left."""

from __future__ import annotations

from namesrv_api.v1 import admin_service_pb2, route_data_pb2

INVOLUNTARY = frozenset(
    {
        route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED,
        route_data_pb2.REMOVAL_REASON_EXPIRED,
        route_data_pb2.REMOVAL_REASON_BROKER_DOWN,
        route_data_pb2.REMOVAL_REASON_LOSS_CONFIRMED,
    }
)
"""Reasons of removals that neither the broker nor an operator asked for at that moment."""


def reason_of(entry: admin_service_pb2.AuditEntry) -> str:
    """Why brokers left, as alerts and metrics name it; empty if none did. A newer name server may have others."""
    value = entry.removal_reason
    if not value:
        return ""
    if value not in route_data_pb2.RemovalReason.values():
        return str(value)
    return route_data_pb2.RemovalReason.Name(value).removeprefix("REMOVAL_REASON_")
