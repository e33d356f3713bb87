"""Pinned snapshots and changes over the wire."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from namesrv_api.v1 import registration_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from tests.support.programs.processes import Client
from tests.support.registrations import identity, registration
from tests.support.routes.route_rows import RouteRows, key_of

pytestmark = pytest.mark.own_server  # revisions are counted, pins and change logs are of the whole server

TIMEOUT = 20.0
B = "127.0.0.1:20911"


def register(client: Client, topics: Iterable[str], counter: int = 1, addr: str = "127.0.0.1:10911") -> None:
    """Registers a group of its own for each address."""
    broker = identity(addr, name=f"broker-{addr.rpartition(':')[2]}")
    client.registration.RegisterBroker(registration(topics, broker, counter), timeout=TIMEOUT)


def pin(client: Client, lease_millis: int | None = None) -> pb.PinRouteSnapshotResponse:
    return client.routes.PinRouteSnapshot(pb.PinRouteSnapshotRequest(lease_millis=lease_millis), timeout=TIMEOUT)


def snapshot(client: Client, pin_id: str | None = None) -> list[pb.StreamRouteSnapshotResponse]:
    return list(client.routes.StreamRouteSnapshot(pb.StreamRouteSnapshotRequest(pin_id=pin_id), timeout=60))


def changes_request(epoch: str, revision: int) -> pb.StreamRouteChangesRequest:
    return pb.StreamRouteChangesRequest(after=pb.ResumePoint(epoch=epoch, revision=revision))


def change_the_tables(client: Client) -> None:
    """Topics come, a group comes, a group goes with its topics."""
    register(client, [f"T{number}" for number in range(1_000, 1_500)], counter=2)
    register(client, ["T1", "of-another-group"], addr=B)
    gone = identity("127.0.0.1:30911", name="broker-30911")
    request = registration_service_pb2.UnregisterBrokerRequest(broker=gone)
    assert client.registration.UnregisterBroker(request, timeout=TIMEOUT).removed


def test_the_changes_after_a_pin_lead_to_the_tables_as_they_are(client: Client) -> None:
    register(client, [f"T{number}" for number in range(1_000)])
    register(client, ["T1", "will-go"], addr="127.0.0.1:30911")
    pinned = pin(client)
    change_the_tables(client)
    latest = snapshot(client)
    rows = RouteRows.of_snapshot(snapshot(client, pinned.pin_id))
    request = changes_request(pinned.header.epoch, pinned.header.revision)
    messages = list(client.routes.StreamRouteChanges(request, timeout=TIMEOUT))
    assert (messages[-1].header, messages[-1].HasField("changes")) == (latest[0].header, False)
    seen = set()
    for message in messages:
        for change in message.changes.changes:
            rows.apply(change)
            seen.add((message.header.revision, key_of(change)))
    assert rows == RouteRows.of_snapshot(latest)
    assert len(seen) == sum(len(message.changes.changes) for message in messages)
