"""A name server that answers what a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1 import diagnostics_service_pb2

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError, RichError
from nsctl.compare import BrokerKey, Reported
from nsctl.console.observer import Observation, Tables
from tests.support.virtual_clock import VirtualClock

START_MILLIS = VirtualClock(0.0).wall_millis()
BROKER = BrokerKey("east", "broker-a", 0, "10.0.0.1:10911")


class FakeNameServer:
    """Plays a name server: brokers, a revision, and what is wrong with it."""

    def __init__(self, endpoint: str = "127.0.0.1:9876") -> None:
        self.endpoint = Endpoint.parse(endpoint)
        self.revision = 1
        self.topics: list[str] = ["orders"]
        self.ordered: list[str] = []
        """Topics with an order of their queues."""
        self.queues: list[route_data_pb2.QueueData] = []
        """Of each of the topics."""
        self.entries: list[admin_service_pb2.AuditEntry] = []
        """The journal."""
        self.lives = [live()]
        self.failures: dict[str, CallError] = {}
        """Calls that fail, by name."""
        self.calls: list[str] = []

    def fail(self, code: grpc.StatusCode, *calls: str, reason: str = "", message: str = "tried: no answer") -> None:
        self.failures = {call: CallError(self.endpoint, RichError(code, message, reason)) for call in calls}

    async def call(self, name: str, request: Message) -> Message:
        self._begin(name)
        header = route_data_pb2.NamesrvHeader(namesrv_name="ns-a", epoch="1", revision=self.revision)
        digests = [
            pb.BrokerDigest(cluster_name=one.cluster_name, broker_name=one.broker_name, broker_addr=one.broker_addr)
            for one in self.lives
        ]
        answers: dict[str, Message] = {
            "GetNamesrvStatus": pb.GetNamesrvStatusResponse(header=header, warm=True),
            "GetDiagnostics": diagnostics_service_pb2.GetDiagnosticsResponse(loop_lag_millis=len(self.calls)),
            "GetRouteDigest": pb.GetRouteDigestResponse(header=header, brokers=digests),
            "ListTopics": pb.ListTopicsResponse(header=header, topics=self.topics),
            "ListKvConfigs": admin_service_pb2.ListKvConfigsResponse(
                kv_configs=[admin_service_pb2.KvConfig(key=topic) for topic in self.ordered]
            ),
            "ListIntents": admin_service_pb2.ListIntentsResponse(header=header),
            "ListAuditEntries": admin_service_pb2.ListAuditEntriesResponse(header=header, entries=self.entries),
        }
        return answers[name]

    async def stream(self, name: str, request: Message) -> AsyncIterator[Message]:
        self._begin(name)
        header = pb.SnapshotHeader(taken_at_millis=START_MILLIS)
        yield pb.StreamRouteSnapshotResponse(snapshot_header=header)
        topics = [pb.TopicQueues(topic=topic, queue_datas=self.queues) for topic in self.topics]
        yield pb.StreamRouteSnapshotResponse(chunk=pb.SnapshotChunk(live_brokers=self.lives, topics=topics))

    def _begin(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]


def live(
    key: BrokerKey = BROKER, *, unconfirmed: bool = False, heard_at: int = START_MILLIS
) -> route_data_pb2.BrokerLiveInfo:
    return route_data_pb2.BrokerLiveInfo(
        cluster_name=key.cluster,
        broker_name=key.broker,
        broker_id=key.id,
        broker_addr=key.addr,
        last_update_timestamp_millis=heard_at,
        heartbeat_timeout_millis=120_000,
        has_channel=True,
        unconfirmed=unconfirmed,
    )


def seen(
    *lives: route_data_pb2.BrokerLiveInfo,
    name: str = "ns-a",
    digest: bytes = b"same",
    problem: str | None = None,
    intents: tuple[admin_service_pb2.Intent, ...] = (),
    clock_ahead: int = 0,
) -> Observation:
    """An observation of a name server that has these brokers."""
    by_key = {BrokerKey(one.cluster_name, one.broker_name, one.broker_id, one.broker_addr): one for one in lives}
    reported = {key: Reported(1, digest) for key in by_key}
    tables = Tables(1, START_MILLIS + clock_ahead, START_MILLIS, by_key, intents, reported)
    header = route_data_pb2.NamesrvHeader(namesrv_name=name)
    status = pb.GetNamesrvStatusResponse(header=header, warm=True)
    return Observation(Endpoint("127.0.0.1", 9876), status, tables, (), START_MILLIS, problem)
