"""Reads the route snapshot of one name server, whole or not at all.

Nothing here knows Spark: this runs in a Spark task as well as in any Python program.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import grpc
from namesrv_api.v1 import route_service_pb2, route_service_pb2_grpc

from groundwork.endpoints import Endpoint
from groundwork.rich_errors import FailedCall, RichError

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Largest message that is accepted. A name server keeps its chunks below 1 MB; the rest is room for others'."""

_MAX_ERROR_LENGTH = 400
_KEEPALIVE_MILLIS = 10_000
_RETRY_UNAVAILABLE = {
    "methodConfig": [
        {
            "name": [{"service": "namesrv_api.v1.RouteService"}],
            # gRPC repeats a call only until the first message has come: rows that are out are never read again.
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.2s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


class SnapshotError(Exception):
    """A snapshot could not be read whole. The text is one line and names the endpoint and the cause."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a name server, in seconds."""

    connect: float = 5.0
    """For one attempt to connect; a name server is a network hop away."""
    total: float = 300.0
    """For the whole snapshot, with what the reader does in between; ten million rows take less than a minute."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which name server, at which point of its history."""

    namesrv: str
    """Name that the name server gives itself."""
    epoch: str
    """Its process lifetime."""
    revision: int
    """Revision of its tables."""
    taken_at_millis: int
    """When the snapshot was taken, by its clock, milliseconds since the Unix epoch."""


class SnapshotStream:
    """The chunks of one snapshot, checked on their way."""

    def __init__(self, endpoint: Endpoint, responses: Iterator[route_service_pb2.StreamRouteSnapshotResponse]) -> None:
        self._endpoint = endpoint
        self._responses = responses
        self.origin = self._read_header()

    def chunks(self) -> Iterator[route_service_pb2.SnapshotChunk]:
        """Yields the chunks. What came is a whole snapshot only once this has ended without an error.

        Raises:
            SnapshotError: The stream failed, broke off before its end marker, or its counts do not agree.
        """
        came: Counter[str] = Counter()
        for response in self._responses:
            self._check_origin(response)
            content = response.WhichOneof("content")
            if content == "snapshot_end":
                self._check_counts(came, response.snapshot_end)
                return
            if content != "chunk":
                raise self._error(f"sent {content or 'a message of an unknown kind'} within a snapshot")
            chunk = response.chunk
            came["cluster_count"] += len(chunk.clusters)
            came["topic_count"] += len(chunk.topics)
            came["queue_data_count"] += sum(len(topic.queue_datas) for topic in chunk.topics)
            came["broker_data_count"] += len(chunk.broker_datas)
            came["live_broker_count"] += len(chunk.live_brokers)
            yield chunk
        raise self._error("ended the snapshot before its end marker")

    def _read_header(self) -> Origin:
        first = next(self._responses, None)
        if first is None:
            raise self._error("ended the snapshot before its header")
        if first.WhichOneof("content") != "snapshot_header" or not first.HasField("header"):
            raise self._error("sent a snapshot without a header")
        header = first.header
        if not header.namesrv_name:
            raise self._error("does not say its name")
        return Origin(header.namesrv_name, header.epoch, header.revision, first.snapshot_header.taken_at_millis)

    def _check_origin(self, response: route_service_pb2.StreamRouteSnapshotResponse) -> None:
        if not response.HasField("header"):
            return
        header, origin = response.header, self.origin
        if (header.namesrv_name, header.epoch, header.revision) != (origin.namesrv, origin.epoch, origin.revision):
            raise self._error(
                f"moved within a snapshot from {origin.namesrv}, epoch {origin.epoch}, revision {origin.revision} "
                f"to {header.namesrv_name}, epoch {header.epoch}, revision {header.revision}"
            )

    def _check_counts(self, came: Counter[str], end: route_service_pb2.SnapshotEnd) -> None:
        for field in route_service_pb2.SnapshotEnd.DESCRIPTOR.fields:
            said = getattr(end, field.name)
            if came[field.name] != said:
                raise self._error(f"sent a snapshot with {field.name} {came[field.name]}, but its end says {said}")

    def _error(self, problem: str) -> SnapshotError:
        return SnapshotError(f"name server {self._endpoint} {problem}")


@contextmanager
def open_snapshot(endpoint: Endpoint, timeouts: Timeouts) -> Iterator[SnapshotStream]:
    """Connects to a name server and starts to read its tables as they are now.

    Yields:
        The snapshot, its header read. The connection is closed when the block is left.

    Raises:
        SnapshotError: The name server cannot be reached, refuses, or does not begin with a header.
    """
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.service_config", json.dumps(_RETRY_UNAVAILABLE)),
        # gRPC's name for the longest time that an attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", int(timeouts.connect * 1000)),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # A name server that was stopped or cut off is noticed long before the total time is over.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MILLIS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_MILLIS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_MILLIS),
    ]
    with grpc.insecure_channel(str(endpoint), options=options) as channel:
        call = route_service_pb2_grpc.RouteServiceStub(channel).StreamRouteSnapshot(
            route_service_pb2.StreamRouteSnapshotRequest(), timeout=timeouts.total
        )
        yield SnapshotStream(endpoint, _responses(endpoint, timeouts, call))


def _responses(
    endpoint: Endpoint, timeouts: Timeouts, call: Iterable[route_service_pb2.StreamRouteSnapshotResponse]
) -> Iterator[route_service_pb2.StreamRouteSnapshotResponse]:
    try:
        yield from call
    except grpc.RpcError as error:
        cause = RichError.of(cast("FailedCall", error))
        # Texts of gRPC can have several lines, and the text of a server anything.
        text = " ".join(str(cause).split())[:_MAX_ERROR_LENGTH]
        if cause.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text += f" (the snapshot took longer than {timeouts.total:g} s)"
        raise SnapshotError(f"name server {endpoint}: {text}") from error
