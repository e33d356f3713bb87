"""Read-only copies and their leaders, and what tests ask them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.routes.followed_rows import FollowedRows
from tests.support.routes.route_rows import RouteRows

TIMEOUT = 20.0
NEVER_SCANS = ("--scan-not-active-broker-interval-millis", "0")


def replica_of(*leaders: NamesrvProcess, arguments: tuple[str, ...] = ()) -> NamesrvProcess:
    """A copy; it may have none of the tables yet."""
    return NamesrvProcess("--follow", ";".join(str(leader.endpoint) for leader in leaders), *arguments)


@contextmanager
def pair(*arguments: str) -> Iterator[tuple[Client, Client, NamesrvProcess]]:
    """A leader and its copy, which has the tables; and the leader's process."""
    with (
        NamesrvProcess(*NEVER_SCANS, *arguments) as leader,
        replica_of(leader) as replica,
        leader.connect() as to_leader,
        replica.connect() as to_replica,
    ):
        eventually(lambda: health(to_replica), lambda seen: seen == "SERVING")
        yield to_leader, to_replica, leader


def status(client: Client) -> pb.GetNamesrvStatusResponse:
    return client.routes.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), timeout=TIMEOUT)


def health(client: Client, service: str = "namesrv_api.v1.RouteService") -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    answer = health_pb2_grpc.HealthStub(client.connection).Check(request, timeout=TIMEOUT)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def reaches(client: Client, revision: int) -> None:
    """Waits until a copy is at a revision."""
    eventually(lambda: status(client).header.revision, lambda seen: seen >= revision)


def rows(client: Client) -> RouteRows:
    return RouteRows.of_snapshot(client.snapshot())


@contextmanager
def watching(client: Client, *topics: str, after: route_data_pb2.NamesrvHeader | None = None) -> Iterator[Any]:
    request = pb.WatchTopicRoutesRequest(topics=topics)
    if after is not None:
        request.resume_after.epoch, request.resume_after.revision = after.epoch, after.revision
    call: Any = client.routes.WatchTopicRoutes(iter([request]), timeout=60)
    yield call
    call.cancel()


def live_brokers(client: Client) -> list[FollowedRows]:
    """What there is where only live brokers are asked for: in a snapshot, and in one that is followed."""
    request = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_LIVE_BROKERS])
    snapshot = client.routes.StreamRouteSnapshot(request, timeout=TIMEOUT)
    request.follow = True
    followed: Any = client.routes.StreamRouteSnapshot(request, timeout=TIMEOUT)
    until_end = [next(followed) for _ in range(3)]
    followed.cancel()
    return [FollowedRows.of_snapshot(snapshot), FollowedRows.of_snapshot(until_end)]
