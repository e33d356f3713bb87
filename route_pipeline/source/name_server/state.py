"""The state of a name server before it is read: where it is in its history, and a pin to read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from route_pipeline.source.name_server.connecting import Connecting
from route_pipeline.source.name_server.connection import connect

_PIN_HINTS = {"LIMIT_EXCEEDED": "wait until a lease has ended, and pin for less: option pinSeconds"}


@dataclass(frozen=True, slots=True)
class NamesrvState:
    """Where a name server is in its history."""

    namesrv: str
    """Name that it gives itself."""
    epoch: str
    """Its process lifetime."""
    revision: int
    """Its current revision."""
    compacted_revision: int
    """Oldest revision that changes can be read after."""
    topics: int
    """Number of its topics."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A snapshot that a name server holds for us."""

    namesrv: str
    """Name that the name server gives itself."""
    epoch: str
    """Its process lifetime."""
    revision: int
    """Revision of the snapshot."""
    pin_id: str
    """Identifies the pin to the name server."""


def ask_state(endpoint: Endpoint, connecting: Connecting) -> NamesrvState:
    """Asks a name server where it is.

    Raises:
        NamesrvError: It cannot be reached, or refuses.
    """
    with connect(endpoint, connecting) as connection:
        status = cast("pb.GetNamesrvStatusResponse", connection.call("GetNamesrvStatus", pb.GetNamesrvStatusRequest()))
        header = status.header
        if not header.namesrv_name:
            raise connection.error("does not say its name")
    return NamesrvState(
        header.namesrv_name, header.epoch, header.revision, status.compacted_revision, status.topic_count
    )


def pin_snapshot(endpoint: Endpoint, connecting: Connecting, seconds: int) -> Pin:
    """Has a name server hold its tables as they are now.

    Args:
        endpoint: Where it listens.
        connecting: How to connect.
        seconds: How long the pin is kept unless it is read from.

    Raises:
        NamesrvError: It cannot be reached, or holds as many snapshots as it may.
    """
    with connect(endpoint, connecting) as connection:
        request = pb.PinRouteSnapshotRequest(lease_seconds=seconds)
        answer = cast("pb.PinRouteSnapshotResponse", connection.call("PinRouteSnapshot", request, _PIN_HINTS))
        header = answer.header
        if not header.namesrv_name:
            raise connection.error("does not say its name")
    return Pin(header.namesrv_name, header.epoch, header.revision, answer.pin_id)
