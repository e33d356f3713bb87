"""The reader of one name server's route snapshot, or of one shard of it: whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from namesrv_api.v1 import route_service_pb2

from groundwork.endpoints import Endpoint
from route_pipeline.source.name_server.connecting import Connecting
from route_pipeline.source.name_server.connection import Connection, NamesrvError, connect
from route_pipeline.source.name_server.messages import SnapshotResponse

Response = route_service_pb2.StreamRouteSnapshotResponse

_HINTS = {"SNAPSHOT_GONE": "call load() again, or raise the option pinSeconds"}


@dataclass(frozen=True, slots=True)
class ShardOf:
    """A part of a name server's tables."""

    index: int = 0
    """From 0; brokers and clusters are in shard 0."""
    count: int = 1
    """Number of shards that make the whole."""

    def message(self) -> route_service_pb2.Shard:
        """The shard as it is asked for."""
        return route_service_pb2.Shard(index=self.index, count=self.count)


WHOLE = ShardOf()
"""All of a name server's tables."""


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

    def __init__(self, connection: Connection, responses: Iterator[Response]) -> None:
        self._connection = connection
        self._responses = responses
        self.origin = self._read_header()

    def chunks(self) -> Iterator[route_service_pb2.SnapshotChunk]:
        """Yields the chunks. What came is a whole snapshot only once this has ended without an error.

        Queues in them are encoded: ``rows.encoded_queues`` reads them.

        Raises:
            NamesrvError: The stream failed, broke off before its end marker, or its counts do not agree.
        """
        came: Counter[str] = Counter()
        for response in self._responses:
            self._check_origin(response)
            content = response.WhichOneof("content")
            if content == "snapshot_end":
                self._check_counts(came, response.snapshot_end)
                return
            if content != "chunk":
                raise self._connection.error(f"sent {content or 'a message of an unknown kind'} within a snapshot")
            chunk = response.chunk
            came["cluster_count"] += len(chunk.clusters)
            came["topic_count"] += len(chunk.topics)
            came["queue_data_count"] += sum(len(topic.queue_datas) for topic in chunk.topics)
            came["broker_data_count"] += len(chunk.broker_datas)
            came["live_broker_count"] += len(chunk.live_brokers)
            yield chunk
        raise self._connection.error("ended the snapshot before its end marker")

    def error(self, problem: str) -> NamesrvError:
        """An error for something that the name server sent."""
        return self._connection.error(problem)

    def _read_header(self) -> Origin:
        first = next(self._responses, None)
        if first is None:
            raise self._connection.error("ended the snapshot before its header")
        if first.WhichOneof("content") != "snapshot_header" or not first.HasField("header"):
            raise self._connection.error("sent a snapshot without a header")
        header = first.header
        if not header.namesrv_name:
            raise self._connection.error("does not say its name")
        return Origin(header.namesrv_name, header.epoch, header.revision, first.snapshot_header.taken_at_millis)

    def _check_origin(self, response: Response) -> None:
        if not response.HasField("header"):
            return
        header, origin = response.header, self.origin
        if (header.namesrv_name, header.epoch, header.revision) != (origin.namesrv, origin.epoch, origin.revision):
            raise self._connection.error(
                f"moved within a snapshot from {origin.namesrv}, epoch {origin.epoch}, revision {origin.revision} "
                f"to {header.namesrv_name}, epoch {header.epoch}, revision {header.revision}"
            )

    def _check_counts(self, came: Counter[str], end: route_service_pb2.SnapshotEnd) -> None:
        for field in route_service_pb2.SnapshotEnd.DESCRIPTOR.fields:
            said = getattr(end, field.name)
            if came[field.name] != said:
                raise self._connection.error(
                    f"sent a snapshot with {field.name} {came[field.name]}, but its end says {said}"
                )


@contextmanager
def open_snapshot(
    endpoint: Endpoint,
    connecting: Connecting,
    pin_id: str | None = None,
    shard: ShardOf = WHOLE,
    tables: Iterable[route_service_pb2.RouteTable] = (),
) -> Iterator[SnapshotStream]:
    """Connects to a name server and starts to read its tables.

    Args:
        endpoint: Where it listens.
        connecting: How to connect.
        pin_id: Which pinned snapshot; None: the tables as they are now.
        shard: Which part of its topics.
        tables: Which tables; none: all. Older name servers send all the same.

    Yields:
        The snapshot, its header read. The connection is closed when the block is left.

    Raises:
        NamesrvError: The name server cannot be reached, refuses, or does not begin with a header.
    """
    request = route_service_pb2.StreamRouteSnapshotRequest(pin_id=pin_id, tables=tables)
    if shard != WHOLE:
        request.shard.CopyFrom(shard.message())
    with connect(endpoint, connecting) as connection:
        responses = connection.stream("StreamRouteSnapshot", request, _HINTS, SnapshotResponse.FromString)
        yield SnapshotStream(connection, responses)
