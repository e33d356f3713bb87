"""The stream for Spark: the planner's plan, in the words of Spark's Python data sources."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from route_pipeline.name_server import NamesrvError
from route_pipeline.options import ReadRequest
from route_pipeline.planner import Planner, read_part
from route_pipeline.positions import INITIAL, OffsetError, from_json, to_json
from route_pipeline.spark_errors import text_first


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

    @text_first(NamesrvError, OffsetError)
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """As :meth:`Planner.end`. Raises OffsetError besides, if the checkpoint is of another version."""
        return to_json(self._planner.end(from_json(start)))

    @text_first(NamesrvError, OffsetError)
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
