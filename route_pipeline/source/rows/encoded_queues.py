"""Queues of a snapshot, column by column: the one table with millions of rows.

Most queues of a snapshot are equal: the same broker, the same numbers. So a snapshot is read with its queues left
encoded, each different one is decoded once, and the columns are looked up by number, without Python code for a value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import cast

import pyarrow as pa
from google.protobuf.message import DecodeError
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from route_pipeline.arrow_schemas import INTEGER, STRING
from route_pipeline.schemas import ROW_COLUMNS, TOPIC_QUEUES
from route_pipeline.source.rows.filter import RowFilter

MAX_DIFFERENT_QUEUES = 16_384
"""Most decoded queues that are kept: a few MB. Above it, all are forgotten; one chunk has a few thousand at most."""

COLUMNS = tuple(column.name for column in ROW_COLUMNS[TOPIC_QUEUES])
"""Names of the columns, ``topic`` first."""


class QueueColumns(dict[bytes, int]):
    """Numbers of the different queues by their encoded form; it grows by being asked."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: list[route_data_pb2.QueueData] = []
        self._columns: list[pa.Array] = []

    def __missing__(self, encoded: bytes) -> int:
        self._queues.append(route_data_pb2.QueueData.FromString(encoded))
        number = self[encoded] = len(self._queues) - 1
        return number

    def of(self, topics: Iterable[route_service_pb2.TopicQueues], wanted: RowFilter) -> dict[str, pa.Array]:
        """The columns of the wanted queues of topics, in the order of ``COLUMNS``.

        Raises:
            ValueError: What came is no queue.
        """
        if len(self) > MAX_DIFFERENT_QUEUES:
            self.clear()
            self._queues.clear()
        names: list[str] = []
        numbers: list[int] = []
        number = self.__getitem__
        try:
            for topic in topics:
                if wanted.wants_topic(topic.topic):
                    # Of a message with encoded queues: see SnapshotResponse.
                    queues = cast("Sequence[bytes]", topic.queue_datas)
                    numbers += map(number, queues)
                    names += [topic.topic] * len(queues)
        except DecodeError as error:
            raise ValueError(f"a queue of topic {topic.topic!r} that cannot be decoded") from error
        rows = pa.array(numbers, INTEGER)
        taken = dict(zip(COLUMNS, (pa.array(names, STRING), *(c.take(rows) for c in self._decoded())), strict=True))
        if not wanted.clusters and not wanted.brokers:
            return taken
        of_rows = (self._queues[number] for number in numbers)
        mask = pa.array([wanted.wants_group(queue.cluster_name, queue.broker_name) for queue in of_rows], pa.bool_())
        return {name: column.filter(mask) for name, column in taken.items()}

    def _decoded(self) -> list[pa.Array]:
        """The columns after ``topic``, of each different queue."""
        queues = self._queues
        if not self._columns or len(self._columns[0]) != len(queues):
            reported = [queue.reported_perm if queue.HasField("reported_perm") else None for queue in queues]
            self._columns = [
                pa.array([queue.cluster_name for queue in queues], STRING),
                pa.array([queue.broker_name for queue in queues], STRING),
                pa.array([queue.read_queue_nums for queue in queues], INTEGER),
                pa.array([queue.write_queue_nums for queue in queues], INTEGER),
                pa.array([queue.perm for queue in queues], INTEGER),
                pa.array([queue.topic_sys_flag for queue in queues], INTEGER),
                pa.array(reported, INTEGER),
                pa.array([static_mapping(queue) for queue in queues], STRING),
            ]
        return self._columns


def static_mapping(queue: route_data_pb2.QueueData) -> str | None:
    """A static topic's mapping as JSON, with RocketMQ's names; None for any other topic. Equal ones are equal texts."""
    if not queue.HasField("mapping"):
        return None
    mapping = queue.mapping
    values = {
        "currIdMap": dict(zip(map(str, mapping.topic_queue_ids), mapping.broker_queue_ids, strict=False)),
        "dirty": mapping.dirty,
        "epoch": mapping.epoch,
        "scope": mapping.scope,
        "totalQueues": mapping.total_queue_nums,
    }
    return json.dumps(values, separators=(",", ":"))
