"""A name server that answers what a test says, and observations of such ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
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
from nsctl.console.rows import Observation
from nsctl.held import BrokerKey, Clock, broker_of, group_of, read

NOW = 1_700_000_000.0
BROKER = BrokerKey("east", "broker-a", 0, "10.0.0.1:10911")


class FakeNameServer(NamesrvClient):
    """Plays a name server and its stubs: brokers, topics on each of their groups, a revision, and what is wrong."""

    def __init__(
        self,
        *lives: route_data_pb2.BrokerLiveInfo,
        endpoint: str = "127.0.0.1:9876",
        name: str = "ns-a",
        digest: bytes = b"same",
        topics: tuple[str, ...] = ("orders",),
        intents: tuple[admin.Intent, ...] = (),
        entries: Sequence[admin.AuditEntry] = (),
        **status: object,
    ) -> None:
        self.route = self.admin = self.diagnostics = cast("Any", self)
        self._metadata = ()
        self.endpoint = Endpoint.parse(endpoint)
        self.timeout_seconds = 3.0
        self.epoch, self.revision = "1", 1
        self.now_millis: int | None = None
        """By its clock, or None for the time of this machine."""
        self.entries = entries
        """Of the journal, the newest first."""
        self.failures: dict[str, CallError] = {}
        """Calls that fail, by name."""
        self.calls: list[str] = []
        self._lives, self._name, self._topics, self._intents = lives, name, topics, intents
        self._status = {"warm": True, **status}
        self._digests = [
            pb.BrokerDigest(cluster_name=cluster, broker_name=broker, broker_id=number, broker_addr=addr, digest=digest)
            for cluster, broker, number, addr in map(broker_of, lives)
        ]

    def __getattr__(self, name: str) -> Any:
        return lambda request, **_: self.answer(name, request)

    def fail(self, code: grpc.StatusCode, *calls: str, reason: str = "") -> None:
        self.failures = {call: CallError(self.endpoint, RichError(code, "tried: no answer", reason)) for call in calls}

    def answer(self, name: str, request: Any) -> Any:
        """What a call says. Raises CallError if it is to fail."""
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]
        header = route_data_pb2.NamesrvHeader(namesrv_name=self._name, epoch=self.epoch, revision=self.revision)
        answers: dict[str, Any] = {
            "StreamRouteSnapshot": mock.MagicMock(**{"__iter__.return_value": self._snapshot(request)}),
            "GetNamesrvStatus": pb.GetNamesrvStatusResponse(header=header, **self._status),  # type: ignore[arg-type]
            "GetDiagnostics": diagnostics_service_pb2.GetDiagnosticsResponse(),
            "GetRouteDigest": pb.GetRouteDigestResponse(header=header, brokers=self._digests),
            "ListIntents": admin.ListIntentsResponse(header=header, intents=self._intents),
            "ListKvConfigs": admin.ListKvConfigsResponse(header=header),
            "GetNamesrvConfig": admin.GetNamesrvConfigResponse(header=header),
            "ListAuditEntries": admin.ListAuditEntriesResponse(header=header, entries=self.entries),
        }
        return answers[name]

    def _snapshot(self, request: pb.StreamRouteSnapshotRequest) -> Iterator[pb.StreamRouteSnapshotResponse]:
        taken_at_millis = self.now_millis or int(time.time() * 1000)
        yield pb.StreamRouteSnapshotResponse(snapshot_header=pb.SnapshotHeader(taken_at_millis=taken_at_millis))
        chunk = pb.SnapshotChunk(live_brokers=self._lives)
        if pb.ROUTE_TABLE_TOPIC_QUEUES in request.tables:
            of_topic = pb.TopicQueues()
            for (cluster, broker), lives in groupby(self._lives, group_of):
                at = {one.broker_id: one.broker_addr for one in lives}
                addrs = [route_data_pb2.BrokerAddr(broker_id=key, broker_addr=addr) for key, addr in at.items()]
                chunk.broker_datas.add(cluster_name=cluster, broker_name=broker, broker_addrs=addrs)
                queues = {"write_queue_nums": 4, "perm": 6, "reported_perm": 6}
                of_topic.queue_datas.add(cluster_name=cluster, broker_name=broker, **queues)
            for topic in self._topics:
                chunk.topics.add(topic=topic, queue_datas=of_topic.queue_datas)
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


def seen(*lives: route_data_pb2.BrokerLiveInfo, **facts: Any) -> Observation:
    """An observation of a name server that has these brokers and facts, at ``NOW`` by its clock and ours."""
    server = FakeNameServer(*lives, **facts)
    held = read(server, most_entries=100)
    held = replace(held, tables=held.tables._replace(clock=Clock(NOW, NOW, NOW)))
    found = tuple(examined(held))
    return Observation(server.endpoint, held.status, held, findings=found, answered_at_millis=1)
