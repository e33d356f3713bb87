"""What Spark reads with: a batch of one revision of each name server, and a stream of the planner's plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from namesrv_common.endpoints import Endpoint
from route_pipeline.change_rows import ChangesPart, SnapshotPart
from route_pipeline.name_server import NamesrvError, Span, ask_state, cold_error, pin_snapshot, wait_until_warm
from route_pipeline.options import ReadRequest
from route_pipeline.planner import Planner, check_name, check_some_answer, read_part
from route_pipeline.positions import INITIAL, from_json, to_json
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
        namesrv, pin_id = pin_snapshot(endpoint, connecting, options.pin_seconds, cold=cold)
        return namesrv, SnapshotPart(endpoint, pin_id)


class NamesrvStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver; a copy of it, made by pickle, reads them in the tasks."""

    def __init__(self, request: ReadRequest, clock: Callable[[], float] = time.time) -> None:
        self._request = request
        self._planner = Planner(request, clock)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        """Nothing has been read."""
        return INITIAL

    @text_first(NamesrvError)
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Calls :meth:`Planner.fix_end`, so the query ends when it has read that far."""
        self._planner.fix_end()

    @text_first(NamesrvError, ValueError)
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """As :meth:`Planner.end`. Raises ValueError besides, if the checkpoint is of another version."""
        return to_json(self._planner.end(from_json(start)))

    @text_first(NamesrvError, ValueError)
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """As :meth:`Planner.parts`."""
        return [InputPartition(part) for part in self._planner.parts(from_json(start), from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's part. Raises NamesrvError, so that Spark fails the task, if it could not be read whole."""
        with text_first(NamesrvError):
            yield from read_part(self._request, partition.value)

    def commit(self, end: dict[str, Any]) -> None:  # noqa: ARG002 - Spark's method
        """Lets the batch's snapshots go: nobody reads them again."""
        self._planner.release()

    def stop(self) -> None:
        """Lets the snapshots of the last batch go."""
        self._planner.release()
