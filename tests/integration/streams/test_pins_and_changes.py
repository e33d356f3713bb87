"""Pinned snapshots, shards and changes over the wire, on both engines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import grpc
import pytest
from namesrv_api.v1 import registration_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import RichError
from namesrv.core.pins import MAX_PINNED_REVISIONS
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration
from tests.support.routes.followed_rows import TABLES, FollowedRows
from tests.support.routes.route_rows import RouteRows, key_of

pytestmark = pytest.mark.own_server  # revisions are counted, pins and change logs are of the whole server

TIMEOUT = 20.0
ROUTES = "/namesrv_api.v1.RouteService"
SHARDS = 3
B = "127.0.0.1:20911"


def register(client: Client, topics: Iterable[str], counter: int = 1, addr: str = "127.0.0.1:10911") -> None:
    """Registers a group of its own for each address."""
    broker = identity(addr, name=f"broker-{addr.rpartition(':')[2]}")
    client.registration.RegisterBroker(registration(topics, broker, counter), timeout=TIMEOUT)


def pin(client: Client, lease_seconds: int | None = None) -> pb.PinRouteSnapshotResponse:
    return client.routes.PinRouteSnapshot(pb.PinRouteSnapshotRequest(lease_seconds=lease_seconds), timeout=TIMEOUT)


def snapshot(
    client: Client, pin_id: str | None = None, shard: pb.Shard | None = None
) -> list[pb.StreamRouteSnapshotResponse]:
    request = pb.StreamRouteSnapshotRequest(pin_id=pin_id, shard=shard)
    return list(client.routes.StreamRouteSnapshot(request, timeout=60))


def changes_request(epoch: str, revision: int, shard: pb.Shard | None = None) -> pb.StreamRouteChangesRequest:
    return pb.StreamRouteChangesRequest(after=pb.ResumePoint(epoch=epoch, revision=revision), shard=shard)


def changes_failure(client: Client, epoch: str, revision: int) -> RichError:
    return client.stream_failure(f"{ROUTES}/StreamRouteChanges", changes_request(epoch, revision))


def shards() -> list[pb.Shard]:
    return [pb.Shard(index=index, count=SHARDS) for index in range(SHARDS)]


def change_the_tables(client: Client) -> None:
    """Topics come, a group comes, a group goes with its topics."""
    register(client, [f"T{number}" for number in range(1_000, 1_500)], counter=2)
    register(client, ["T1", "of-another-group"], addr=B)
    gone = identity("127.0.0.1:30911", name="broker-30911")
    request = registration_service_pb2.UnregisterBrokerRequest(broker=gone)
    assert client.registration.UnregisterBroker(request, timeout=TIMEOUT).removed


def test_a_pinned_revision_is_read_twice_in_shards_that_make_the_whole(client: Client) -> None:
    register(client, [f"T{number}" for number in range(1_000)])
    register(client, ["T1", "will-go"], addr="127.0.0.1:30911")
    pinned = pin(client)
    whole = RouteRows.of_snapshot(snapshot(client))
    change_the_tables(client)
    for _ in range(2):
        parts = [snapshot(client, pinned.pin_id, shard) for shard in shards()]
        headers = [message.header for part in parts for message in part]
        assert all(header == pinned.header for header in headers)
        assert RouteRows.of_snapshot(message for part in parts for message in part) == whole
        for index, part in enumerate(parts):
            assert RouteRows.of_snapshot(part) == whole.shard(index, SHARDS)
        assert sum(part[-1].snapshot_end.topic_count for part in parts) == 1_001
        assert [part[-1].snapshot_end.live_broker_count for part in parts] == [2, 0, 0]
    assert RouteRows.of_snapshot(snapshot(client, pinned.pin_id)) == whole


def test_the_changes_after_a_pin_lead_in_each_shard_to_the_tables_as_they_are(client: Client) -> None:
    register(client, [f"T{number}" for number in range(1_000)])
    register(client, ["T1", "will-go"], addr="127.0.0.1:30911")
    pinned = pin(client)
    change_the_tables(client)
    latest = snapshot(client)
    for shard in shards():
        rows = RouteRows.of_snapshot(snapshot(client, pinned.pin_id, shard))
        request = changes_request(pinned.header.epoch, pinned.header.revision, shard)
        messages = list(client.routes.StreamRouteChanges(request, timeout=TIMEOUT))
        assert (messages[-1].header, messages[-1].HasField("changes")) == (latest[0].header, False)
        seen = set()
        for message in messages:
            for change in message.changes.changes:
                rows.apply(change)
                seen.add((message.header.revision, key_of(change)))
        assert rows == RouteRows.of_snapshot(latest).shard(shard.index, SHARDS)
        assert len(seen) == sum(len(message.changes.changes) for message in messages)


def test_eight_revisions_can_be_pinned_and_not_one_more(client: Client) -> None:
    for counter in range(1, MAX_PINNED_REVISIONS + 1):
        register(client, ["T"], counter)
        assert pin(client).header.revision == counter
    register(client, ["T"], MAX_PINNED_REVISIONS + 1)
    error = client.failure(f"{ROUTES}/PinRouteSnapshot", pb.PinRouteSnapshotRequest())
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
    assert error.metadata == {"name": "pinned revisions", "value": "9", "limit": "8", "caller": "all"}


def test_a_pin_without_readers_ends_with_its_lease_and_makes_room(client: Client) -> None:
    pins = []
    for counter in range(1, MAX_PINNED_REVISIONS + 1):
        register(client, ["T"], counter)
        pins.append(pin(client, lease_seconds=1 if counter == 1 else None).pin_id)
    register(client, ["T"], MAX_PINNED_REVISIONS + 1)

    def there_is_room() -> bool:  # reading the pin would renew its lease, so only this shows that it has ended
        try:
            pin(client)
        except grpc.RpcError:
            return False
        return True

    eventually(there_is_room)
    for pin_id in (pins[0], "never-pinned"):
        request = pb.StreamRouteSnapshotRequest(pin_id=pin_id)
        error = client.stream_failure(f"{ROUTES}/StreamRouteSnapshot", request)
        assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "SNAPSHOT_GONE")
    assert snapshot(client, pins[1])[0].header.revision == 2


def test_after_a_restart_a_reader_is_told_to_start_again(engine: str, tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path), "--scan-not-active-broker-interval-millis", "0")
    with NamesrvProcess(*arguments, engine=engine) as namesrv, namesrv.connect() as client:
        register(client, ["T"])
        pinned = pin(client)
        assert namesrv.terminate() == 0
    with NamesrvProcess(*arguments, engine=engine) as namesrv, namesrv.connect() as client:
        error = changes_failure(client, pinned.header.epoch, 0)
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "EPOCH_CHANGED")
        epoch = snapshot(client)[0].header.epoch
        assert error.metadata == {"epoch": epoch}
        gone = client.stream_failure(
            f"{ROUTES}/StreamRouteSnapshot", pb.StreamRouteSnapshotRequest(pin_id=pinned.pin_id)
        )
        assert gone.reason == "SNAPSHOT_GONE"


def test_a_revision_that_is_not_in_the_log_is_refused(client: Client) -> None:
    register(client, ["T"])
    header = snapshot(client)[0].header
    error = changes_failure(client, header.epoch, header.revision + 1)
    assert (error.code, error.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED")
    assert error.metadata == {"revision": "2", "compacted_revision": "0", "last_revision": "1"}


def test_a_bad_shard_is_answered_with_its_field(client: Client) -> None:
    shard = pb.Shard(index=3, count=3)
    for error in (
        client.stream_failure(f"{ROUTES}/StreamRouteSnapshot", pb.StreamRouteSnapshotRequest(shard=shard)),
        client.stream_failure(f"{ROUTES}/StreamRouteChanges", changes_request("e", 0, shard)),
    ):
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert error.metadata["field"] == "shard.index"


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


def test_shards_of_the_topics_alone_make_all_topics(client: Client) -> None:
    register(client, [f"T{number}" for number in range(1_000)])
    tables = [pb.ROUTE_TABLE_TOPIC_QUEUES]
    parts = [
        message
        for shard in shards()
        for message in client.routes.StreamRouteSnapshot(
            pb.StreamRouteSnapshotRequest(shard=shard, tables=tables), timeout=60
        )
    ]
    assert FollowedRows.of_snapshot(parts) == FollowedRows.of_snapshot(snapshot(client)).of_tables(tables)


def test_tables_that_cannot_be_are_answered_with_their_field(client: Client) -> None:
    asked = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_CLUSTERS, pb.ROUTE_TABLE_UNSPECIFIED])
    error = client.stream_failure(f"{ROUTES}/StreamRouteSnapshot", asked)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert error.metadata["field"] == "tables[1]"
