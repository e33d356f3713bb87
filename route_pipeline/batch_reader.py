"""Batch reads: one revision of each name server, a task for each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from namesrv_common.endpoints import Endpoint
from route_pipeline.change_rows import ChangesPart, SnapshotPart
from route_pipeline.name_server import NamesrvError, Span, ask_state, cold_error, pin_snapshot, wait_until_warm
from route_pipeline.options import ReadRequest
from route_pipeline.planner import check_name, check_some_answer, read_part
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
        """Pins one revision of each name server and plans a task for each. Raises NamesrvError."""
        options = self._request.options
        names: dict[str, Endpoint] = {}
        parts: list[InputPartition] = []
        lost: list[NamesrvError] = []
        for endpoint in options.endpoints:
            try:
                namesrv, part = self._plan(endpoint)
            except NamesrvError as error:
                if options.on_lost == "fail" or not error.lost:
                    raise
                logger.warning("left out: %s", error)
                lost.append(error)
                continue
            check_name(names, namesrv, endpoint)
            parts.append(InputPartition(part))
        check_some_answer(lost, options.endpoints)
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's part. Raises NamesrvError, so that Spark fails the task, if it could not be read whole."""
        request, part = self._request, partition.value
        with text_first(NamesrvError):
            if isinstance(part, ChangesPart):
                yield from read_part(request, part)
            else:
                cold = request.options.on_cold == "read"
                table = request.options.table
                yield from read_table(part.endpoint, table, request.connecting, part.pin_id, request.wanted, cold=cold)

    def _plan(self, endpoint: Endpoint) -> tuple[str, ChangesPart | SnapshotPart]:
        """The name of a name server, and the part of the task that reads it."""
        options, connecting = self._request.options, self._request.connecting
        cold = options.on_cold == "read"
        if options.on_cold == "wait":
            wait_until_warm(endpoint, connecting)
        if options.table == CHANGES:
            asked_at = int(time.time() * 1_000_000)
            state = ask_state(endpoint, connecting)
            if not state.warm and not cold:
                raise cold_error(state.namesrv, endpoint)
            span = Span(state.epoch, state.compacted_revision, state.revision)
            return state.namesrv, ChangesPart(endpoint, state.namesrv, span, read_at=asked_at)
        pin = pin_snapshot(endpoint, connecting, options.pin_seconds, cold=cold)
        return pin.namesrv, SnapshotPart(endpoint, pin.pin_id)
