"""The same calls in either protocol, ready to be sent."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2, route_data_pb2, route_service_pb2

from bench.workload import HEARTBEAT_TIMEOUT_MILLIS, QUEUE_NUMS, TIMESTAMP_MILLIS, Broker, registration, topic_name
from tests.support.programs.rocketmq import broker_fields, data_version, frame, registration_body, topic_config

FIRST_OPAQUE = 1_000_000_000
"""The load generator replaces this number by its own ones of ten digits."""
_ROUTES = "/namesrv_api.v1.RouteService/"
_REGISTRATIONS = "/namesrv_api.v1.RegistrationService/"

Topics = Sequence[int]


class Call(NamedTuple):
    """One call, encoded."""

    kind: str
    """The path of a gRPC call, or the name of the same call."""
    data: bytes
    """The whole gRPC message with its prefix, or the whole frame."""
    opaque_at: int = 0
    """Where the number of a frame begins."""


class Grpc:
    """Calls of this project's contract."""

    protocol = "grpc"

    def lookup(self, topic: int) -> Call:
        """Asks for the route of a topic."""
        return _grpc(_ROUTES + "GetTopicRoute", route_service_pb2.GetTopicRouteRequest(topic=topic_name(topic)))

    def register(self, broker: int, topics: Topics, counter: int, *, changed: bool = False) -> Call:
        """A master's full registration; ``changed`` has other queue counts than usual."""
        return _framed(_REGISTRATIONS + "RegisterBroker", registration(broker, topics, counter, changed=changed))

    def query_version(self, broker: int, counter: int) -> Call:
        """Asks whether the name server holds another version."""
        version = route_data_pb2.DataVersion(timestamp_millis=TIMESTAMP_MILLIS, counter=counter)
        request = registration_service_pb2.QueryDataVersionRequest(broker=Broker(broker).identity, data_version=version)
        return _grpc(_REGISTRATIONS + "QueryDataVersion", request)

    def heartbeat(self, broker: int) -> Call:
        """Tells that a broker lives."""
        request = registration_service_pb2.BrokerHeartbeatRequest(broker=Broker(broker).identity)
        return _grpc(_REGISTRATIONS + "BrokerHeartbeat", request)


class Remoting:
    """The same calls of RocketMQ's protocol, as its brokers and clients of version 5 send them."""

    protocol = "remoting"

    def lookup(self, topic: int) -> Call:
        """Asks for the route of a topic."""
        return _remoting("GetTopicRoute", 105, {"topic": topic_name(topic)})

    def register(self, broker: int, topics: Topics, counter: int, *, changed: bool = False) -> Call:
        """A master's full registration; ``changed`` has other queue counts than usual.

        RouteInfoManager takes a registration of exactly one topic for an increment, and refuses one of an unknown
        broker. So a broker with one topic reports one of its own name, too, as brokers of RocketMQ always do.
        """
        names = [topic_name(topic) for topic in topics]
        if len(names) == 1:
            names.append(Broker(broker).name)
        queues = 2 * QUEUE_NUMS if changed else QUEUE_NUMS
        body = registration_body([topic_config(name, queues) for name in names], counter)
        fields = {
            **_fields(broker),
            "haServerAddr": Broker(broker).addr,
            "heartbeatTimeoutMillis": str(HEARTBEAT_TIMEOUT_MILLIS),
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        }
        return _remoting("RegisterBroker", 103, fields, body)

    def query_version(self, broker: int, counter: int) -> Call:
        """Asks whether the name server holds another version."""
        return _remoting("QueryDataVersion", 322, _fields(broker), json.dumps(data_version(counter)).encode())

    def heartbeat(self, broker: int) -> Call:
        """Tells that a broker lives."""
        return _remoting("BrokerHeartbeat", 904, _fields(broker))


Language = Grpc | Remoting


def _grpc(path: str, request: Message) -> Call:
    return _framed(path, request.SerializeToString())


def _framed(path: str, message: bytes) -> Call:
    return Call(path, struct.pack(">BI", 0, len(message)) + message)


def _fields(broker: int) -> dict[str, str]:
    who = Broker(broker)
    return {**broker_fields(who.name, who.addr), "clusterName": who.cluster}


def _remoting(kind: str, code: int, fields: dict[str, str], body: bytes = b"") -> Call:
    data = frame(code, fields, body, FIRST_OPAQUE)
    return Call(kind, data, data.index(str(FIRST_OPAQUE).encode()))
