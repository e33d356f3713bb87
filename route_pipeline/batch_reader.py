"""Batch reads: one revision of each name server, a task for each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition, StringStartsWith

from groundwork.endpoints import Endpoint
from route_pipeline.first_line import text_first
from route_pipeline.name_server import NamesrvError, Span, ask_state, cold_error, pin_warm_snapshot, wait_until_warm
from route_pipeline.options import READ, WAIT, ReadRequest
from route_pipeline.schemas import CHANGES
from route_pipeline.snapshot_rows import Part, read_table

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SnapshotPart(InputPartition):
    """A pinned snapshot."""

    endpoint: Endpoint
    pin_id: str


@dataclass(frozen=True)
class ChangesPart(InputPartition):
    """The changes of one name server."""

    endpoint: Endpoint
    namesrv: str
    span: Span


class NamesrvReader(DataSourceReader):
    """Reads a table. Travels to the executors by pickle, so it holds no connection."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request

    @text_first(NamesrvError)
    def partitions(self) -> list[InputPartition]:
        """Pins one revision of each name server and plans a task for each.

        Raises:
            NamesrvError: A name server does not answer (with onLost=continue: none of them does), or two addresses
                are the same name server.
            ColdError: A name server is warming up (with onCold=wait: still, after timeoutSeconds).
        """
        names: dict[str, Endpoint] = {}
        parts: list[InputPartition] = []
        lost: list[NamesrvError] = []
        for endpoint in self._request.endpoints:
            try:
                namesrv, part = self._plan(endpoint)
            except NamesrvError as error:
                if self._request.fail_on_lost or not error.lost:
                    raise
                logger.warning("left out: %s", error)
                lost.append(error)
                continue
            if namesrv:
                check_name(names, namesrv, endpoint)
            parts.append(part)
        if len(lost) == len(self._request.endpoints):
            raise NamesrvError("no name server answers: " + "; ".join(map(str, lost)))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's part. Raises NamesrvError, so that Spark fails the task, if it could not be read whole."""
        with text_first(NamesrvError):
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
                request.wanted,
            )
            return
        assert isinstance(partition, SnapshotPart)
        part = Part(partition.pin_id, request.wanted, cold=request.on_cold == READ)
        yield from read_table(partition.endpoint, request.table, request.connecting, part)

    def _plan(self, endpoint: Endpoint) -> tuple[str, InputPartition]:
        """The name of a name server (empty where it need not be asked) and the part of the task that reads it."""
        request = self._request
        if request.table == CHANGES:
            ask = wait_until_warm if request.on_cold == WAIT else ask_state
            state = ask(endpoint, request.connecting)
            if not state.warm and request.on_cold != READ:
                raise cold_error(state.namesrv, endpoint)
            span = Span(state.epoch, state.compacted_revision, state.revision)
            return state.namesrv, ChangesPart(endpoint, state.namesrv, span)
        namesrv, pin_id = "", request.pins.get(endpoint)
        if pin_id is None:
            pin = pin_warm_snapshot(endpoint, request.connecting, request.pin_seconds, request.on_cold)
            namesrv, pin_id = pin.namesrv, pin.pin_id
        return namesrv, SnapshotPart(endpoint, pin_id)


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


def check_name(names: dict[str, Endpoint], namesrv: str, endpoint: Endpoint) -> None:
    """Notes a name server's name. Raises NamesrvError if another address has it: their rows would be mixed up."""
    other = names.setdefault(namesrv, endpoint)
    if other != endpoint:
        raise NamesrvError(
            f"{other} and {endpoint} both call themselves {namesrv!r}: "
            "name each name server once, and each its own name"
        )
