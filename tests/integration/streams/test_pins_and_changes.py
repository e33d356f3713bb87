"""Pinned snapshots and changes over the wire."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import grpc
import pytest
from namesrv_api.v1 import registration_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import RichError
from namesrv.core.pins import MAX_PINNED_REVISIONS
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import identity, registration
from tests.support.routes.followed_rows import TABLES, FollowedRows
from tests.support.routes.route_rows import RouteRows, key_of

pytestmark = pytest.mark.own_server  # revisions are counted, pins and change logs are of the whole server

TIMEOUT = 20.0
ROUTES = "/namesrv_api.v1.RouteService"
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


def changes_failure(client: Client, epoch: str, revision: int) -> RichError:
    return client.stream_failure(f"{ROUTES}/StreamRouteChanges", changes_request(epoch, revision))


def change_the_tables(client: Client) -> None:
    """Topics come, a group comes, a group goes with its topics."""
    register(client, [f"T{number}" for number in range(1_000, 1_500)], counter=2)
    register(client, ["T1", "of-another-group"], addr=B)
    gone = identity("127.0.0.1:30911", name="broker-30911")
    request = registration_service_pb2.UnregisterBrokerRequest(broker=gone)
    assert client.registration.UnregisterBroker(request, timeout=TIMEOUT).removed


def test_a_pinned_revision_is_read_twice_after_the_tables_have_changed(client: Client) -> None:
    register(client, [f"T{number}" for number in range(1_000)])
    register(client, ["T1", "will-go"], addr="127.0.0.1:30911")
    pinned = pin(client)
    whole = RouteRows.of_snapshot(snapshot(client))
    change_the_tables(client)
    for _ in range(2):
        messages = snapshot(client, pinned.pin_id)
        assert all(message.header == pinned.header for message in messages)
        assert RouteRows.of_snapshot(messages) == whole
        end = messages[-1].snapshot_end
        assert (end.topic_count, end.live_broker_count) == (1_001, 2)


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


OF_READERS = MAX_PINNED_REVISIONS * 3 // 4
"""Revisions that may be pinned by readers that do not follow."""


def test_where_all_pins_are_new_another_one_is_refused_but_a_followers_is_not(client: Client) -> None:
    for counter in range(1, OF_READERS + 1):
        register(client, ["T"], counter)
        assert pin(client).header.revision == counter
    register(client, ["T"], OF_READERS + 1)
    error = client.failure(f"{ROUTES}/PinRouteSnapshot", pb.PinRouteSnapshotRequest())
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
    assert error.metadata == {"name": "pinned revisions", "value": "13", "limit": "12", "caller": "all"}
    assert error.retry_after_seconds == 1.0
    client.routes.PinRouteSnapshot(pb.PinRouteSnapshotRequest(follow=True), timeout=TIMEOUT)


def test_a_caller_that_pins_and_reads_again_and_again_is_never_refused(client: Client) -> None:
    first = ""
    for counter in range(1, 3 * MAX_PINNED_REVISIONS):
        register(client, ["T"], counter)
        pinned = pin(client)
        first = first or pinned.pin_id
        assert snapshot(client, pinned.pin_id)[0].header.revision == counter
    request = pb.StreamRouteSnapshotRequest(pin_id=first)
    error = client.stream_failure(f"{ROUTES}/StreamRouteSnapshot", request)
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "SNAPSHOT_GONE")


def test_a_released_pin_is_gone(client: Client) -> None:
    register(client, ["T"])
    pinned = pin(client)
    assert pinned.warm
    assert snapshot(client, pinned.pin_id)[0].snapshot_header.warm
    request = pb.ReleaseRouteSnapshotRequest(pin_id=pinned.pin_id)
    answers = [client.routes.ReleaseRouteSnapshot(request, timeout=TIMEOUT) for _ in range(2)]
    assert [answer.released for answer in answers] == [True, False]
    assert answers[0].header == pinned.header
    asked = pb.StreamRouteSnapshotRequest(pin_id=pinned.pin_id)
    assert client.stream_failure(f"{ROUTES}/StreamRouteSnapshot", asked).reason == "SNAPSHOT_GONE"


def test_after_a_restart_a_reader_is_told_to_start_again(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path), "--scan-not-active-broker-interval-millis", "0")
    with NamesrvProcess(*arguments) as namesrv, namesrv.connect() as client:
        register(client, ["T"])
        pinned = pin(client)
        assert namesrv.terminate() == 0
    with NamesrvProcess(*arguments) as namesrv, namesrv.connect() as client:
        error = changes_failure(client, pinned.header.epoch, 0)
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "EPOCH_CHANGED")
        epoch = snapshot(client)[0].header.epoch
        assert error.metadata == {"epoch": epoch}
        gone = client.stream_failure(
            f"{ROUTES}/StreamRouteSnapshot", pb.StreamRouteSnapshotRequest(pin_id=pinned.pin_id)
        )
        assert gone.reason == "SNAPSHOT_GONE"


def test_a_revision_that_is_still_to_come_is_refused(client: Client) -> None:
    register(client, ["T"])
    header = snapshot(client)[0].header
    error = changes_failure(client, header.epoch, header.revision + 1)
    assert (error.code, error.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_NOT_REACHED")
    assert error.metadata == {"revision": "2", "last_revision": "1"}


def test_of_a_pin_and_of_the_tables_as_they_are_any_table_is_read_alone(client: Client) -> None:
    register(client, [f"T{number}" for number in range(1_000)])
    register(client, ["T1"], addr=B)
    whole = FollowedRows.of_snapshot(snapshot(client))
    pin_id = pin(client).pin_id
    for table in TABLES:
        for pinned in (None, pin_id):
            request = pb.StreamRouteSnapshotRequest(pin_id=pinned, tables=[table])
            messages = list(client.routes.StreamRouteSnapshot(request, timeout=60))
            assert FollowedRows.of_snapshot(messages) == whole.of_tables([table])
            end = messages[-1].snapshot_end
            assert end.topic_count == (1_000 if table == pb.ROUTE_TABLE_TOPIC_QUEUES else 0)
            assert end.live_broker_count == (2 if table == pb.ROUTE_TABLE_LIVE_BROKERS else 0)


def test_tables_that_cannot_be_are_answered_with_their_field(client: Client) -> None:
    asked = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_CLUSTERS, pb.ROUTE_TABLE_UNSPECIFIED])
    error = client.stream_failure(f"{ROUTES}/StreamRouteSnapshot", asked)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert error.metadata["field"] == "tables[1]"
