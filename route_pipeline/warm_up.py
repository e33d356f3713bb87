"""A warm-up of Spark for the format ``namesrv``: what a first read waits for happens before somebody reads.

That is the start of three Python processes, one after the other: Spark makes the source in one, plans in another, reads
in a third. Each imports Spark's packages and ours. Besides, Java loads its classes and compiles the query. A read of a
table with one row of its own does all of it, and asks no name server.

Spark ends processes that have had nothing to do for a minute. The next read then starts others: they are forks, which
import less.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from route_pipeline import data_source  # noqa: F401 - the process that makes sources imports it here
from route_pipeline.schemas import TOPIC_QUEUES, spark_ddl

if TYPE_CHECKING:
    import pyarrow as pa

_FORMAT = "namesrv_warm_up"

_log = logging.getLogger(__name__)


class WarmUpSource(DataSource):
    """A table like ``topic_queues`` with one row, which says nothing."""

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return _FORMAT

    def schema(self) -> str:
        """The schema of topic_queues: the code that Spark makes for it serves the read to come, too."""
        return spark_ddl(TOPIC_QUEUES)

    def reader(self, schema: StructType) -> WarmUpReader:  # noqa: ARG002
        return WarmUpReader()


class WarmUpReader(DataSourceReader):
    """Imports in each process what a reader of a name server needs there."""

    def partitions(self) -> list[InputPartition]:
        """One task, which starts the process that reads."""
        from route_pipeline import batch_reader  # noqa: F401, PLC0415

        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """The row."""
        import pyarrow as pa  # noqa: PLC0415

        from route_pipeline import batch_reader  # noqa: F401, PLC0415
        from route_pipeline.arrow_schemas import STRING, arrow_schema  # noqa: PLC0415

        schema = arrow_schema(TOPIC_QUEUES)
        values = [pa.array(["" if field.type == STRING else 0], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(values, schema=schema)


def start_warm_up(spark: SparkSession) -> threading.Thread:
    """Begins to warm a session up, in a thread. Nobody waits for it, and nobody hears of it if it fails.

    Returns:
        The thread. It ends when the session is warm, or is stopped.
    """
    thread = threading.Thread(target=_read, args=[spark], name="namesrv-warm-up", daemon=True)
    thread.start()
    return thread


def _read(spark: SparkSession) -> None:
    try:
        spark.sparkContext.setJobDescription("warm-up of the format namesrv")
        spark.dataSource.register(WarmUpSource)
        spark.read.format(_FORMAT).load().collect()
    except Exception as error:  # noqa: BLE001 - such as of a session that is stopped meanwhile
        _log.debug("Spark was not warmed up: %s", error)
