"""A name server that answers what a test says, and observations of such ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast
from unittest import mock

import grpc
from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1 import diagnostics_service_pb2

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError
from nsctl.commands.doctor import examined
from nsctl.console.observer import Observation
from nsctl.held import BrokerKey, Clock, GroupKey, Held, Reported, Tables, broker_of

NOW = 1_700_000_000.0
BROKER = BrokerKey("east", "broker-a", 0, "10.0.0.1:10911")


class FakeNameServer(NamesrvClient):
    """Plays a name server and its stubs: a broker, a topic, a revision, and what is wrong with it."""

    def __init__(self, endpoint: str = "127.0.0.1:9876") -> None:
        self.route = self.admin = self.diagnostics = cast("Any", self)
        self._metadata = ()
        self.endpoint = Endpoint.parse(endpoint)
        self.timeout_seconds = 3.0
        self.epoch, self.revision = "1", 1
        self.now_millis: int | None = None
        """By its clock, or None for the time of this machine."""
        self.status: dict[str, Any] = {"warm": True}
        self.entries = [entry("one")]
        """Of the journal, the newest first."""
        self.failures: dict[str, CallError] = {}
        """Calls that fail, by name."""
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda request, **_: self.answer(name, request)

    def fail(self, code: grpc.StatusCode, *calls: str, reason: str = "") -> None:
        self.failures = {call: CallError(self.endpoint, RichError(code, "tried: no answer", reason)) for call in calls}

    def answer(self, name: str, request: Any) -> Any:
        """What a call says. Raises CallError if it is to fail."""
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]
        header = route_data_pb2.NamesrvHeader(namesrv_name="ns-a", epoch=self.epoch, revision=self.revision)
        answers: dict[str, Any] = {
            "StreamRouteSnapshot": mock.MagicMock(**{"__iter__.return_value": self._snapshot(request)}),
            "GetNamesrvStatus": pb.GetNamesrvStatusResponse(header=header, **self.status),
            "GetDiagnostics": diagnostics_service_pb2.GetDiagnosticsResponse(),
            "GetRouteDigest": pb.GetRouteDigestResponse(header=header, brokers=[pb.BrokerDigest()]),
            "ListIntents": admin.ListIntentsResponse(header=header),
            "ListKvConfigs": admin.ListKvConfigsResponse(header=header),
            "GetNamesrvConfig": admin.GetNamesrvConfigResponse(header=header),
            "ListAuditEntries": admin.ListAuditEntriesResponse(header=header, entries=self.entries),
        }
        return answers[name]

    def _snapshot(self, request: pb.StreamRouteSnapshotRequest) -> Iterator[pb.StreamRouteSnapshotResponse]:
        taken_at_millis = self.now_millis or int(time.time() * 1000)
        yield pb.StreamRouteSnapshotResponse(snapshot_header=pb.SnapshotHeader(taken_at_millis=taken_at_millis))
        chunk = pb.SnapshotChunk(live_brokers=[live()])
        chunk.live_brokers[0].last_update_timestamp_millis = taken_at_millis
        if pb.ROUTE_TABLE_TOPIC_QUEUES in request.tables:
            addrs = [route_data_pb2.BrokerAddr(broker_id=0, broker_addr=BROKER.addr)]
            chunk.broker_datas.add(cluster_name="east", broker_name="broker-a", broker_addrs=addrs)
            of_topic = chunk.topics.add(topic="orders")
            of_topic.queue_datas.add(cluster_name="east", broker_name="broker-a", write_queue_nums=4, perm=6)
        yield pb.StreamRouteSnapshotResponse(chunk=chunk)


def entry(summary: str, at: float = NOW, **fields: object) -> admin.AuditEntry:
    return admin.AuditEntry(summary=summary, applied_at_millis=int(at * 1000), **fields)  # type: ignore[arg-type]


def drain(key: BrokerKey = BROKER) -> admin.Intent:
    kind = admin.Intent.KIND_WIPE_WRITE_PERM
    return admin.Intent(
        kind=kind, cluster_name=key.cluster, broker_name=key.broker, since_millis=int(NOW * 1000), comment="new disks"
    )


def live(key: BrokerKey = BROKER, *, heard_at: float = NOW, unconfirmed: bool = False) -> route_data_pb2.BrokerLiveInfo:
    return route_data_pb2.BrokerLiveInfo(
        cluster_name=key.cluster,
        broker_name=key.broker,
        broker_id=key.id,
        broker_addr=key.addr,
        last_update_timestamp_millis=int(heard_at * 1000),
        heartbeat_timeout_millis=120_000,
        has_channel=True,
        unconfirmed=unconfirmed,
    )


def seen(
    *lives: route_data_pb2.BrokerLiveInfo,
    name: str = "ns-a",
    digest: bytes = b"same",
    topics: tuple[str, ...] = ("orders",),
    intents: tuple[admin.Intent, ...] = (),
    entries: tuple[admin.AuditEntry, ...] = (),
    **status: object,
) -> Observation:
    """An observation of a name server that has these brokers, and topics on each of them."""
    by_key = {broker_of(one): one for one in lives}
    groups: dict[GroupKey, route_data_pb2.BrokerData] = {}
    for key in by_key:
        group = groups.setdefault(
            GroupKey(*key[:2]), route_data_pb2.BrokerData(cluster_name=key.cluster, broker_name=key.broker)
        )
        group.broker_addrs.add(broker_id=key.id, broker_addr=key.addr)
    queues = [
        route_data_pb2.QueueData(
            cluster_name=key.cluster, broker_name=key.broker, write_queue_nums=4, perm=6, reported_perm=6
        )
        for key in groups
    ]
    route = route_data_pb2.TopicRouteData(queue_datas=queues, broker_datas=groups.values())
    tables = Tables(Clock(NOW, NOW, NOW), by_key, groups, dict.fromkeys(topics, route))
    header = route_data_pb2.NamesrvHeader(namesrv_name=name, epoch="1", revision=1)
    told = pb.GetNamesrvStatusResponse(**{"header": header, "warm": True, **status})  # type: ignore[arg-type]
    reported = {key: Reported(1, digest) for key in by_key}
    held = Held(told, tables, digests=reported, intents=intents, entries=entries)
    found = tuple(examined(held))
    return Observation(Endpoint("127.0.0.1", 9876), told, held, findings=found, answered_at_millis=1)
