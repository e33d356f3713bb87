"""Snapshots that are followed, and the changes after a pinned one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from namesrv_api.v1 import route_service_pb2 as pb

from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client
from tests.support.registrations import register_group, unregister, unregister_group
from tests.support.routes.route_rows import FollowedRows, RouteRows, key_of


@contextmanager
def following(client: Client, **fields: Any) -> Iterator[Iterator[pb.StreamRouteSnapshotResponse]]:
    """A followed snapshot; its messages wait for the next one."""
    call: Any = client.routes.StreamRouteSnapshot(pb.StreamRouteSnapshotRequest(follow=True, **fields), timeout=60)
    yield iter(call)
    call.cancel()


def snapshot_of(stream: Iterator[pb.StreamRouteSnapshotResponse]) -> FollowedRows:
    """Reads up to the end marker."""
    messages = []
    for message in stream:
        messages.append(message)
        if message.HasField("snapshot_end"):
            return FollowedRows.of_snapshot(messages)
    raise AssertionError("the stream ended before the snapshot did")


def take(rows: FollowedRows, stream: Iterator[pb.StreamRouteSnapshotResponse], revision: int) -> list[str]:
    """Takes changes in up to the bookmark of a revision; returns their kinds."""
    kinds = []
    for message in stream:
        assert message.HasField("changes")
        rows.take(message)
        kinds += [str(change.WhichOneof("row")) for change in message.changes.changes]
        if not message.changes.changes and message.header.revision >= revision:
            return kinds
    raise AssertionError("the stream ended")


def point(client: Client) -> pb.ResumePoint:
    header = client.routes.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), timeout=TIMEOUT).header
    return pb.ResumePoint(epoch=header.epoch, revision=header.revision)


def test_a_followed_snapshot_is_kept_up_and_a_lost_broker_is_one_change(client: Client) -> None:
    first = register_group(client, *(f"T{number}" for number in range(10_000)))
    with following(client) as stream:
        rows = snapshot_of(stream)
        assert take(rows, stream, first) == []
        take(rows, stream, register_group(client, "T1", "T2", port=20911))
        unregister_group(client)
        assert sorted(take(rows, stream, first + 2)) == ["broker_removed", "group_removed"]
        assert rows == FollowedRows.of_snapshot(client.snapshot())


def test_a_follower_resumes_without_the_snapshot_or_from_a_pinned_one(client: Client) -> None:
    register_group(client, "T1")
    resumed = FollowedRows.of_snapshot(client.snapshot())
    before = point(client)
    pin = client.routes.PinRouteSnapshot(pb.PinRouteSnapshotRequest(), timeout=TIMEOUT)
    reached = register_group(client, "T2", port=20911)
    with following(client, resume_after=before) as stream:
        take(resumed, stream, reached)
    with following(client, pin_id=pin.pin_id) as stream:
        pinned = snapshot_of(stream)
        assert {key[0] for key in pinned.queues} == {"T1"}
        take(pinned, stream, reached)
    assert resumed == pinned == FollowedRows.of_snapshot(client.snapshot())


def test_the_changes_after_a_pin_lead_to_the_tables_as_they_are(client: Client) -> None:
    register_group(client, *(f"T{number}" for number in range(1_000)))
    register_group(client, "T1", "will-go", port=30911)
    pinned = client.routes.PinRouteSnapshot(pb.PinRouteSnapshotRequest(), timeout=TIMEOUT)
    register_group(client, *(f"T{number}" for number in range(1_000, 1_500)), counter=2)
    register_group(client, "T1", "of-another-group", port=20911)
    unregister(client, "broker-30911", 30911)
    latest = client.snapshot()
    request = pb.StreamRouteSnapshotRequest(pin_id=pinned.pin_id)
    rows = RouteRows.of_snapshot(list(client.routes.StreamRouteSnapshot(request, timeout=60)))
    after = pb.ResumePoint(epoch=pinned.header.epoch, revision=pinned.header.revision)
    messages = list(client.routes.StreamRouteChanges(pb.StreamRouteChangesRequest(after=after), timeout=TIMEOUT))
    assert (messages[-1].header, messages[-1].HasField("changes")) == (latest[0].header, False)
    told = [(message.header.revision, change) for message in messages for change in message.changes.changes]
    for _, change in told:
        rows.apply(change)
    assert rows == RouteRows.of_snapshot(latest)
    assert len({(revision, key_of(change)) for revision, change in told}) == len(told)
