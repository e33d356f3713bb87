"""The same calls in either protocol, ready to be sent."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2, route_data_pb2, route_service_pb2

from bench.peers import remoting
from bench.workload import QUEUE_NUMS, TIMESTAMP_MILLIS, Broker, identity, registration, topic_name

LOOKUP = "GetTopicRoute"
REGISTER = "RegisterBroker"
QUERY_VERSION = "QueryDataVersion"
HEARTBEAT = "BrokerHeartbeat"
BATCH = "BatchGetTopicRoutes"
WATCH = "WatchTopicRoutes"

_ROUTES = "/namesrv_api.v1.RouteService/"
_REGISTRATIONS = "/namesrv_api.v1.RegistrationService/"

Topics = Sequence[int]


class Call(NamedTuple):
    """One call, encoded."""

    kind: str
    """The path of a gRPC call, or the same call's name."""
    data: bytes
    """The whole gRPC message with its prefix, or the whole frame."""
    opaque_at: int = 0
    """Where a frame's number begins."""


class Language(Protocol):
    """Makes calls of one protocol."""

    def lookup(self, topic: int) -> Call:
        """Asks for the route of a topic."""

    def register(self, broker: int, topics: Topics, counter: int, *, changed: bool = False) -> Call:
        """A master's full registration; changed with other queue counts than usual."""

    def query_version(self, broker: int, counter: int) -> Call:
        """Asks whether the name server holds another version."""

    def heartbeat(self, broker: int) -> Call:
        """Says that a broker lives."""


class Grpc:
    """This project's contract, which the naive server speaks too."""

    def lookup(self, topic: int) -> Call:
        """Asks for the route of a topic."""
        return _grpc(_ROUTES + LOOKUP, route_service_pb2.GetTopicRouteRequest(topic=topic_name(topic)))

    def batch(self, topics: Sequence[int]) -> Call:
        """Asks for the routes of several topics at once. RocketMQ has no such call."""
        names = [topic_name(topic) for topic in topics]
        return _grpc(_ROUTES + BATCH, route_service_pb2.BatchGetTopicRoutesRequest(topics=names))

    def watch(self, topic: int) -> Call:
        """Watches a topic. RocketMQ has no such call."""
        return _grpc(_ROUTES + WATCH, route_service_pb2.WatchTopicRoutesRequest(topics=[topic_name(topic)]))

    def register(self, broker: int, topics: Topics, counter: int, *, changed: bool = False) -> Call:
        """A master's full registration; changed with other queue counts than usual."""
        return _framed(
            _REGISTRATIONS + REGISTER, registration(broker, topics, counter, frozenset(topics) if changed else range(0))
        )

    def query_version(self, broker: int, counter: int) -> Call:
        """Asks whether the name server holds another version."""
        version = route_data_pb2.DataVersion(timestamp_millis=TIMESTAMP_MILLIS, counter=counter)
        request = registration_service_pb2.QueryDataVersionRequest(broker=identity(broker), data_version=version)
        return _grpc(_REGISTRATIONS + QUERY_VERSION, request)

    def heartbeat(self, broker: int) -> Call:
        """Says that a broker lives."""
        request = registration_service_pb2.BrokerHeartbeatRequest(broker=identity(broker))
        return _grpc(_REGISTRATIONS + HEARTBEAT, request)


class Remoting:
    """RocketMQ's protocol."""

    def lookup(self, topic: int) -> Call:
        """Asks for the route of a topic."""
        return Call(LOOKUP, *remoting.get_route(topic_name(topic)))

    def register(self, broker: int, topics: Topics, counter: int, *, changed: bool = False) -> Call:
        """A master's full registration; changed with other queue counts than usual."""
        queue_nums = 2 * QUEUE_NUMS if changed else QUEUE_NUMS
        return Call(REGISTER, *remoting.register(Broker(broker), topics, queue_nums, counter))

    def query_version(self, broker: int, counter: int) -> Call:
        """Asks whether the name server holds another version."""
        return Call(QUERY_VERSION, *remoting.query_data_version(Broker(broker), counter))

    def heartbeat(self, broker: int) -> Call:
        """Says that a broker lives."""
        return Call(HEARTBEAT, *remoting.heartbeat(Broker(broker)))


def _grpc(path: str, request: Message) -> Call:
    return _framed(path, request.SerializeToString())


def _framed(path: str, message: bytes) -> Call:
    return Call(path, struct.pack(">BI", 0, len(message)) + message)
