"""Batch reads: one revision of each name server, a task for each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition, StringStartsWith

from namesrv_common.endpoints import Endpoint
from route_pipeline.change_rows import ChangesPart, SnapshotPart
from route_pipeline.name_server import NamesrvError, Span, ask_state, cold_error, pin_warm_snapshot, wait_until_warm
from route_pipeline.options import ReadRequest
from route_pipeline.planner import check_name, read_part
from route_pipeline.schemas import CHANGES
from route_pipeline.snapshot_rows import read_table
from route_pipeline.spark_errors import text_first

logger = logging.getLogger(__name__)


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
        for endpoint in self._request.options.endpoints:
            try:
                namesrv, part = self._plan(endpoint)
            except NamesrvError as error:
                if self._request.options.on_lost == "fail" or not error.lost:
                    raise
                logger.warning("left out: %s", error)
                lost.append(error)
                continue
            if namesrv:
                check_name(names, namesrv, endpoint)
            parts.append(InputPartition(part))
        if len(lost) == len(self._request.options.endpoints):
            raise NamesrvError("no name server answers: " + "; ".join(map(str, lost)))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's part. Raises NamesrvError, so that Spark fails the task, if it could not be read whole."""
        with text_first(NamesrvError):
            for batch in self._read(partition.value):
                yield self._request.selected(batch)

    def _read(self, part: ChangesPart | SnapshotPart) -> Iterator[pa.RecordBatch]:
        request = self._request
        if isinstance(part, ChangesPart):
            return read_part(request, part)
        table, cold = request.options.table, request.options.on_cold == "read"
        return read_table(part.endpoint, table, request.connecting, part.pin_id, request.wanted, cold=cold)

    def _plan(self, endpoint: Endpoint) -> tuple[str, ChangesPart | SnapshotPart]:
        """The name of a name server (empty where it need not be asked) and the part of the task that reads it."""
        request = self._request
        if request.options.table == CHANGES:
            asked_at = int(time.time() * 1_000_000)
            ask = wait_until_warm if request.options.on_cold == "wait" else ask_state
            state = ask(endpoint, request.connecting)
            if not state.warm and request.options.on_cold != "read":
                raise cold_error(state.namesrv, endpoint)
            span = Span(state.epoch, state.compacted_revision, state.revision)
            return state.namesrv, ChangesPart(endpoint, state.namesrv, span, read_at=asked_at)
        namesrv, pin_id = "", request.options.pins.get(endpoint)
        if pin_id is None:
            pin = pin_warm_snapshot(endpoint, request.connecting, request.options.pin_seconds, request.options.on_cold)
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
