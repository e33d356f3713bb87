"""Batch reads: one revision of each name server, in shards."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition, StringStartsWith

from groundwork.endpoints import Endpoint
from route_pipeline.name_server import WHOLE, NamesrvError, ShardOf, Span, ask_state, pin_snapshot
from route_pipeline.options import DEFAULT_SHARDS, ReadRequest
from route_pipeline.schemas import CHANGES, TOPIC_QUEUES
from route_pipeline.snapshot_rows import Part, read_table

logger = logging.getLogger(__name__)

TOPICS_A_TASK = 50_000
"""Topics of a name server that one task reads: in a second or so. A task costs half of that by itself."""
SHARDED_REVISIONS = 20_000
"""Spans of fewer revisions are read by one task: several would cost more than they save."""


@dataclass(frozen=True)
class SnapshotPart(InputPartition):
    """A shard of a pinned snapshot."""

    endpoint: Endpoint
    pin_id: str
    shard: ShardOf = WHOLE


@dataclass(frozen=True)
class ChangesPart(InputPartition):
    """A shard of the changes of one name server."""

    endpoint: Endpoint
    namesrv: str
    span: Span
    shard: ShardOf = WHOLE


class NamesrvReader(DataSourceReader):
    """Reads a table. Travels to the executors by pickle, so it holds no connection."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request

    def partitions(self) -> list[InputPartition]:
        """Pins one revision of each name server; a task for each shard of each.

        Raises:
            NamesrvError: A name server does not answer (with onLost=continue: none of them does), or two addresses
                are the same name server.
        """
        names: dict[str, Endpoint] = {}
        parts: list[InputPartition] = []
        lost: list[NamesrvError] = []
        for endpoint in self._request.endpoints:
            try:
                namesrv, of_this = self._plan(endpoint)
            except NamesrvError as error:
                if self._request.fail_on_lost or not error.lost:
                    raise
                logger.warning("left out: %s", error)
                lost.append(error)
                continue
            if namesrv:
                check_name(names, namesrv, endpoint)
            parts += of_this
        if len(lost) == len(self._request.endpoints):
            raise NamesrvError("no name server answers: " + "; ".join(map(str, lost)))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one shard. Raises NamesrvError, so that Spark fails the task, if it could not be read whole."""
        for batch in self._read(partition):
            yield self._request.selected(batch)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        request = self._request
        if isinstance(partition, ChangesPart):
            from route_pipeline.change_rows import change_rows  # noqa: PLC0415 - few reads need it

            yield from change_rows(
                (partition.endpoint, partition.namesrv),
                request.connecting,
                partition.span,
                partition.shard,
                request.wanted,
            )
            return
        assert isinstance(partition, SnapshotPart)
        part = Part(partition.pin_id, partition.shard, request.wanted)
        yield from read_table(partition.endpoint, request.table, request.connecting, part)

    def _plan(self, endpoint: Endpoint) -> tuple[str, list[InputPartition]]:
        """The name of a name server (empty where it need not be asked) and the tasks that read it."""
        request = self._request
        if request.table == CHANGES:
            state = ask_state(endpoint, request.connecting)
            span = Span(state.epoch, state.compacted_revision, state.revision)
            whole = ChangesPart(endpoint, state.namesrv, span)
            count = request.shards or shards_of_changes(whole.span)
            return state.namesrv, [replace(whole, shard=shard) for shard in shards(count)]
        wanted = snapshot_shards(request, endpoint) if request.table == TOPIC_QUEUES else [WHOLE]
        namesrv, pin_id = "", request.pins.get(endpoint)
        if pin_id is None:
            pin = pin_snapshot(endpoint, request.connecting, request.pin_seconds)
            namesrv, pin_id = pin.namesrv, pin.pin_id
        return namesrv, [SnapshotPart(endpoint, pin_id, shard) for shard in wanted]


class FilteringReader(NamesrvReader):
    """A reader that is told the filters of its query, and so leaves rows out early.

    PySpark fails queries of a reader that takes filters while ``spark.sql.python.filterPushdown.enabled`` is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Takes what it understands. Spark goes over the rows again in any case, so it is given all of them back."""
        wanted = self._request.wanted
        for one in filters:
            if isinstance(one, (EqualTo, In)) and len(one.attribute) == 1:
                values = one.value if isinstance(one, In) else (one.value,)
                wanted = wanted.narrowed(one.attribute[0], [value for value in values if isinstance(value, str)])
            elif isinstance(one, StringStartsWith) and len(one.attribute) == 1:
                wanted = wanted.beginning(one.attribute[0], one.value)
        self._request = replace(self._request, wanted=wanted)
        return filters


def shards(count: int) -> list[ShardOf]:
    return [ShardOf(index, count) for index in range(count)]


def snapshot_shards(request: ReadRequest, endpoint: Endpoint) -> list[ShardOf]:
    """The shards in which to read the topics of a name server: as asked for, or as many as it is large."""
    if request.shards is not None:
        return shards(request.shards)
    topics = ask_state(endpoint, request.connecting).topics
    return shards(min(max(1, ceil(topics / TOPICS_A_TASK)), DEFAULT_SHARDS))


def shards_of_changes(span: Span) -> int:
    """How many tasks read changes, unless that is asked for."""
    return DEFAULT_SHARDS if span.up_to - span.after > SHARDED_REVISIONS else 1


def check_name(names: dict[str, Endpoint], namesrv: str, endpoint: Endpoint) -> None:
    """Notes a name server's name. Raises NamesrvError if another address has it: their rows would be mixed up."""
    other = names.setdefault(namesrv, endpoint)
    if other != endpoint:
        raise NamesrvError(
            f"{other} and {endpoint} both call themselves {namesrv!r}: "
            "name each name server once, and each its own name"
        )
