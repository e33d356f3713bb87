"""Rules on requests of RouteService, each with an error that names field, problem and limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from namesrv_api.v1 import route_service_pb2

from namesrv.config import limits
from namesrv.core.errors import InvalidField, LimitExceeded
from namesrv.core.snapshot import ALL_TABLES, WHOLE, RouteTable, SnapshotPart
from namesrv.server.services import field_rules


def batch_topics(request: route_service_pb2.BatchGetTopicRoutesRequest) -> Iterator[tuple[str, str]]:
    """The topics of a batch, each once, with the name of the field it is in. The names themselves are not checked.

    Raises:
        InvalidField: There are none.
        LimitExceeded: There are too many.
    """
    count = len(request.topics)
    if count == 0:
        raise InvalidField("topics", f"is empty; name 1 to {limits.MAX_BATCH_TOPICS} topics")
    if count > limits.MAX_BATCH_TOPICS:
        raise LimitExceeded("topics of one batch", count, limits.MAX_BATCH_TOPICS)
    seen: set[str] = set()
    for index, topic in enumerate(request.topics):
        if topic not in seen:
            seen.add(topic)
            yield f"topics[{index}]", topic


def zone_name(
    request: route_service_pb2.GetTopicRouteRequest
    | route_service_pb2.BatchGetTopicRoutesRequest
    | route_service_pb2.WatchTopicRoutesRequest,
) -> str | None:
    """The zone that a lookup or a watch asks from; None if it names none. Raises InvalidField."""
    if not request.HasField("zone_name"):
        return None
    field_rules.check_name("zone_name", request.zone_name)
    return request.zone_name


def snapshot_part(request: route_service_pb2.StreamRouteSnapshotRequest) -> SnapshotPart:
    """The tables and the shard that a request asks for; the whole if it names none. Raises InvalidField."""
    shard, tables = snapshot_shard(request), _route_tables(request.tables)
    if request.HasField("shard") and RouteTable.TOPIC_QUEUES not in tables:
        raise InvalidField("shard", "is set, but tables leaves ROUTE_TABLE_TOPIC_QUEUES out; all else is in no shard")
    return replace(shard, tables=tables)


def snapshot_shard(
    request: route_service_pb2.StreamRouteSnapshotRequest | route_service_pb2.StreamRouteChangesRequest,
) -> SnapshotPart:
    """The shard that a request asks for; the whole if it names none. Raises InvalidField."""
    if not request.HasField("shard"):
        return WHOLE
    shard = request.shard
    for part in ("count", "index"):
        if not shard.HasField(part):
            raise InvalidField(f"shard.{part}", "is missing; a shard needs index and count")
    if not 1 <= shard.count <= limits.MAX_SHARDS:
        raise InvalidField("shard.count", f"is {shard.count}, must be 1 to {limits.MAX_SHARDS}")
    if not 0 <= shard.index < shard.count:
        raise InvalidField("shard.index", f"is {shard.index}, must be 0 to {shard.count - 1}: below shard.count")
    return SnapshotPart(shard.index, shard.count)


def resume_point(field: str, point: route_service_pb2.ResumePoint) -> route_service_pb2.ResumePoint:
    """The point that changes are asked for after. Raises InvalidField."""
    if not point.epoch:
        raise InvalidField(f"{field}.epoch", "is missing; take epoch and revision from a header")
    if not point.HasField("revision"):
        raise InvalidField(f"{field}.revision", "is missing; take epoch and revision from a header")
    if point.revision < 0:
        raise InvalidField(f"{field}.revision", f"is {point.revision}, must not be negative")
    return point


def pin_lease_seconds(request: route_service_pb2.PinRouteSnapshotRequest) -> int:
    """How long a pin is to be kept. Raises InvalidField."""
    if not request.HasField("lease_seconds"):
        return limits.DEFAULT_PIN_LEASE_SECONDS
    seconds, lowest, highest = request.lease_seconds, limits.MIN_PIN_LEASE_SECONDS, limits.MAX_PIN_LEASE_SECONDS
    if not lowest <= seconds <= highest:
        raise InvalidField("lease_seconds", f"is {seconds}, must be {lowest} to {highest}")
    return seconds


def _route_tables(asked: Iterable[int]) -> frozenset[RouteTable]:
    tables: set[RouteTable] = set()
    for index, value in enumerate(asked):
        field = f"tables[{index}]"
        try:
            table = RouteTable(value)
        except ValueError:
            highest = max(table.value for table in RouteTable)
            raise InvalidField(field, f"is {value}, must be a RouteTable, 1 to {highest}") from None
        if table in tables:
            raise InvalidField(field, f"is ROUTE_TABLE_{table.name} again; name each table once")
        tables.add(table)
    return frozenset(tables) or ALL_TABLES
