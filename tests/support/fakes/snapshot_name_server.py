"""A name server that streams the snapshot it is told to, over real gRPC on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import grpc
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv_common.grpc_errors import RichError
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv, refuse
from tests.support.patience import TIMEOUT

Response = route_service_pb2.StreamRouteSnapshotResponse
Chunk = route_service_pb2.SnapshotChunk
End = route_service_pb2.SnapshotEnd
Script = Callable[[grpc.ServicerContext], Iterable[Response]]
"""What the fake answers to one call."""

TAKEN_AT_MILLIS = 1_767_225_600_123


class FakeNamesrv(ScriptedNamesrv):
    """Answers each snapshot with its script, and is where it is told to be in its history."""

    def __init__(self, script: Script, namesrv: str = "ns-a") -> None:
        super().__init__(namesrv, epoch="0001", revision=7)
        self.script = script
        self.compacted_revision = 0
        self.warm = True
        self.changes: dict[int, list[route_service_pb2.RouteChange]] = {}
        """The change log by revision; revisions without changes have no message."""
        self.pins: list[int] = []
        """Lease of each pin so far, milliseconds."""
        self.full = 0
        """So many times it is refused to pin, because other reads must end first."""
        self.released: list[str] = []
        """Ids of pins that were released."""
        self.snapshot_requests: list[route_service_pb2.StreamRouteSnapshotRequest] = self.asked["StreamRouteSnapshot"]

    def StreamRouteSnapshot(self, _: object, context: grpc.ServicerContext) -> Iterator[Response]:  # noqa: N802
        for response in self.script(context):
            told = Response()
            told.CopyFrom(response)
            if told.WhichOneof("content") == "snapshot_header":
                told.snapshot_header.warm = self.warm
            yield told

    def PinRouteSnapshot(  # noqa: N802
        self, request: route_service_pb2.PinRouteSnapshotRequest, context: grpc.ServicerContext
    ) -> route_service_pb2.PinRouteSnapshotResponse:
        if self.full:
            self.full -= 1
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            refuse(context, RichError(code, "pins: 13", reason="LIMIT_EXCEEDED", domain="namesrv.dev"))
        self.pins.append(request.lease_millis)
        return route_service_pb2.PinRouteSnapshotResponse(
            header=self.header(),
            pin_id=f"pin-{len(self.pins)}",
            lease_millis=request.lease_millis,
            warm=self.warm,
        )

    def ReleaseRouteSnapshot(  # noqa: N802
        self, request: route_service_pb2.ReleaseRouteSnapshotRequest, _: object
    ) -> route_service_pb2.ReleaseRouteSnapshotResponse:
        self.released.append(request.pin_id)
        return route_service_pb2.ReleaseRouteSnapshotResponse(header=self.header(), released=True)

    def GetNamesrvStatus(self, *_: object) -> route_service_pb2.GetNamesrvStatusResponse:  # noqa: N802
        return route_service_pb2.GetNamesrvStatusResponse(
            header=self.header(), compacted_revision=self.compacted_revision, warm=self.warm
        )

    def StreamRouteChanges(  # noqa: N802
        self, request: route_service_pb2.StreamRouteChangesRequest, _: object
    ) -> Iterator[route_service_pb2.StreamRouteChangesResponse]:
        for revision in range(request.after.revision + 1, request.up_to_revision + 1):
            if revision in self.changes:
                changes = route_service_pb2.RouteChanges(
                    applied_at_millis=TAKEN_AT_MILLIS + revision, changes=self.changes[revision]
                )
                yield route_service_pb2.StreamRouteChangesResponse(header=self.header(revision), changes=changes)
        yield route_service_pb2.StreamRouteChangesResponse(header=self.header(request.up_to_revision))


serving = FakeNamesrv
"""Runs a fake until the block is left."""


def header(namesrv: str = "ns-a", revision: int = 7) -> Response:
    return Response(
        header=route_data_pb2.NamesrvHeader(namesrv_name=namesrv, epoch="0001", revision=revision),
        snapshot_header=route_service_pb2.SnapshotHeader(taken_at_millis=TAKEN_AT_MILLIS),
    )


def end_of(chunks: Iterable[Chunk]) -> Response:
    """The end marker with the right counts."""
    end = End()
    for chunk in chunks:
        end.cluster_count += len(chunk.clusters)
        end.topic_count += len(chunk.topics)
        end.queue_data_count += sum(len(topic.queue_datas) for topic in chunk.topics)
        end.broker_data_count += len(chunk.broker_datas)
        end.live_broker_count += len(chunk.live_brokers)
    return Response(snapshot_end=end)


def snapshot(*chunks: Chunk, namesrv: str = "ns-a") -> Script:
    """A script that sends one whole snapshot."""
    responses = [header(namesrv), *(Response(chunk=chunk) for chunk in chunks), end_of(chunks)]
    return lambda _context: responses


def queue(broker_name: str, read: int = 8, write: int = 8, perm: int = 6) -> route_data_pb2.QueueData:
    return route_data_pb2.QueueData(
        cluster_name="DefaultCluster",
        broker_name=broker_name,
        read_queue_nums=read,
        write_queue_nums=write,
        perm=perm,
        topic_sys_flag=0,
    )


def topics_chunk(**queues: list[route_data_pb2.QueueData]) -> Chunk:
    """A chunk of topics by name."""
    return Chunk(topics=[route_service_pb2.TopicQueues(topic=name, queue_datas=rows) for name, rows in queues.items()])


def live(broker_id: int, broker_addr: str) -> route_data_pb2.BrokerLiveInfo:
    return route_data_pb2.BrokerLiveInfo(
        cluster_name="DefaultCluster",
        broker_name="broker-a",
        broker_id=broker_id,
        broker_addr=broker_addr,
        ha_server_addr="10.0.0.1:10912" if broker_id == 0 else None,
        data_version=route_data_pb2.DataVersion(timestamp_millis=1000, counter=3, state_version=0),
        last_update_timestamp_millis=TAKEN_AT_MILLIS - 5,
        generation=4,
        has_channel=True,
    )


def fleet_chunk(**addresses: str) -> Chunk:
    """A chunk with the cluster and group of broker-a, without live brokers."""
    return Chunk(
        clusters=[route_data_pb2.ClusterData(cluster_name="DefaultCluster", broker_names=["broker-a"])],
        broker_datas=[
            route_data_pb2.BrokerData(
                cluster_name="DefaultCluster",
                broker_name="broker-a",
                broker_addrs=[
                    route_data_pb2.BrokerAddr(broker_id=int(key.removeprefix("id")), broker_addr=address)
                    for key, address in addresses.items()
                ],
                zone_name="zone-1",
            )
        ],
    )


def put(topic: str, queues: route_data_pb2.QueueData) -> route_service_pb2.RouteChange:
    """A topic's queues came or changed."""
    return route_service_pb2.RouteChange(topic_put=route_service_pb2.TopicQueues(topic=topic, queue_datas=[queues]))


def gone(topic: str) -> route_service_pb2.RouteChange:
    """A topic lost its queues."""
    return route_service_pb2.RouteChange(
        topic_removed=route_service_pb2.TopicQueuesRemoval(
            topic=topic,
            cluster_name="DefaultCluster",
            broker_name="broker-a",
            reason=route_data_pb2.REMOVAL_REASON_NOT_IN_REGISTRATION,
        )
    )


CHUNKS = (
    fleet_chunk(id0="10.0.0.1:10911", id1="10.0.0.2:10911"),
    topics_chunk(TopicTest=[queue("broker-a")], Other=[queue("broker-a", 4, 2)]),
)
"""Two brokers of a group, and two topics."""
QUICK = {"connectTimeoutSeconds": str(TIMEOUT), "timeoutSeconds": str(2 * TIMEOUT)}
"""Options of a reader of fakes."""
Pair = tuple[FakeNamesrv, FakeNamesrv]


@contextmanager
def two_alike() -> Iterator[Pair]:
    """Two name servers with the same tables."""
    with serving(snapshot(*CHUNKS)) as first, serving(snapshot(*CHUNKS, namesrv="ns-b"), namesrv="ns-b") as second:
        yield first, second
