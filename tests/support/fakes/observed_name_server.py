"""A name server that answers what a test says, and observations of such ones."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1 import diagnostics_service_pb2

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError, RichError
from nsctl.commands.history import Clock
from nsctl.compare import BrokerKey, Reported
from nsctl.console.observer import Observation, Tables

NOW = 1_700_000_000.0
BROKER = BrokerKey("east", "broker-a", 0, "10.0.0.1:10911")


class FakeNameServer:
    """Plays a name server: a broker, topics, a revision, and what is wrong with it."""

    def __init__(self) -> None:
        self.endpoint = Endpoint.parse("127.0.0.1:9876")
        self.revision = 1
        self.clock_ahead = 0.0
        self.heard_ago = 3.0
        self.topics = {"orders": 6}
        """Each with its permission."""
        self.failures: dict[str, CallError] = {}
        """Calls that fail, by name."""
        self.calls: list[str] = []

    def fail(self, code: grpc.StatusCode, *calls: str, reason: str = "") -> None:
        self.failures = {call: CallError(self.endpoint, RichError(code, "tried: no answer", reason)) for call in calls}

    async def call(self, name: str, request: Message) -> Message:
        self._begin(name)
        header = route_data_pb2.NamesrvHeader(namesrv_name="ns-a", epoch="1", revision=self.revision)
        answers: dict[str, Message] = {
            "GetNamesrvStatus": pb.GetNamesrvStatusResponse(header=header, warm=True),
            "GetDiagnostics": diagnostics_service_pb2.GetDiagnosticsResponse(),
            "GetRouteDigest": pb.GetRouteDigestResponse(header=header),
            "ListIntents": admin.ListIntentsResponse(header=header),
            "ListAuditEntries": admin.ListAuditEntriesResponse(header=header, entries=[entry("one")]),
        }
        return answers[name]

    async def stream(self, name: str, request: Message) -> AsyncIterator[Message]:
        self._begin(name)
        taken_at_millis = int((time.time() + self.clock_ahead) * 1000)
        yield pb.StreamRouteSnapshotResponse(snapshot_header=pb.SnapshotHeader(taken_at_millis=taken_at_millis))
        addrs = [route_data_pb2.BrokerAddr(broker_id=0, broker_addr=BROKER.addr)]
        group = route_data_pb2.BrokerData(cluster_name="east", broker_name="broker-a", broker_addrs=addrs)
        of_group = {"cluster_name": "east", "broker_name": "broker-a", "write_queue_nums": 4}
        topics = [
            pb.TopicQueues(topic=topic, queue_datas=[route_data_pb2.QueueData(perm=perm, **of_group)])  # type: ignore[arg-type]
            for topic, perm in self.topics.items()
        ]
        lives = [live(heard_at=taken_at_millis / 1000 - self.heard_ago)]
        chunk = pb.SnapshotChunk(live_brokers=lives, topics=topics, broker_datas=[group])
        yield pb.StreamRouteSnapshotResponse(chunk=chunk)

    def _begin(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]


def entry(summary: str, at: float = NOW, **fields: object) -> admin.AuditEntry:
    return admin.AuditEntry(summary=summary, applied_at_millis=int(at * 1000), **fields)  # type: ignore[arg-type]


def drain(key: BrokerKey = BROKER, since: float = NOW) -> admin.Intent:
    kind = admin.Intent.KIND_WIPE_WRITE_PERM
    return admin.Intent(
        kind=kind, cluster_name=key.cluster, broker_name=key.broker, since_millis=int(since * 1000), comment="new disks"
    )


def live(
    key: BrokerKey = BROKER, *, heard_at: float = NOW, unconfirmed: bool = False, doubted: bool = False
) -> route_data_pb2.BrokerLiveInfo:
    found = route_data_pb2.BrokerLiveInfo(
        cluster_name=key.cluster,
        broker_name=key.broker,
        broker_id=key.id,
        broker_addr=key.addr,
        last_update_timestamp_millis=int(heard_at * 1000),
        heartbeat_timeout_millis=120_000,
        has_channel=True,
        unconfirmed=unconfirmed,
    )
    if doubted:
        found.doubt_ends_at_millis = int(NOW * 1000) + 30_000
    return found


def seen(
    *lives: route_data_pb2.BrokerLiveInfo,
    name: str = "ns-a",
    digest: bytes = b"same",
    topics: tuple[str, ...] = ("orders",),
    intents: tuple[admin.Intent, ...] = (),
    latest: tuple[admin.AuditEntry, ...] = (),
    **status: object,
) -> Observation:
    """An observation of a name server that has these brokers."""
    by_key = {BrokerKey(one.cluster_name, one.broker_name, one.broker_id, one.broker_addr): one for one in lives}
    reported = {key: Reported(1, digest) for key in by_key}
    tables = Tables(("1", 1), Clock(NOW, NOW, NOW), by_key, intents, reported, frozenset(topics))
    header = route_data_pb2.NamesrvHeader(namesrv_name=name, epoch="1", revision=1)
    told = pb.GetNamesrvStatusResponse(**{"header": header, "warm": True, **status})  # type: ignore[arg-type]
    return Observation(Endpoint("127.0.0.1", 9876), told, tables=tables, latest=latest, answered_at_millis=1)
