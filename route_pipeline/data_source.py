"""The Spark data source ``namesrv``: the route tables of running name servers, and how they change.

::

    register(spark)  # not needed where the package pyspark_namesrv is installed for Spark's Python
    spark.read.format("namesrv").option("endpoints", "10.0.0.1:9876,10.0.0.2:9876").load()
    spark.readStream.format("namesrv").option("endpoints", "10.0.0.1:9876,10.0.0.2:9876").load()

All tables and options are described in docs/pipeline.md. A plan pins one revision of each name server. All tasks,
their retries, and all actions on one DataFrame read that revision. A new ``load()`` reads the next one.

A first read waits for three Python processes, one after the other: Spark makes the source in one, plans in another, and
reads in a third. What only the later ones need is imported by the methods that they call: Arrow and gRPC take longer
than all else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from pyspark.sql import SparkSession, is_remote
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from route_pipeline.options import FORMAT, STREAMING, ReadRequest
from route_pipeline.schemas import CHANGES, spark_ddl
from route_pipeline.spark_errors import text_first
from route_pipeline.worker_python import check_worker_python

if TYPE_CHECKING:
    from route_pipeline.batch_reader import NamesrvReader
    from route_pipeline.stream_reader import NamesrvStreamReader


class NamesrvDataSource(DataSource):
    """Route tables of running name servers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Checks the options: Spark makes the source at ``load()``, also where a schema is given."""
        super().__init__(cast("dict[str, str]", options))
        with text_first(ValueError):
            self._request = ReadRequest.of(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """The schema of the table."""
        return spark_ddl(self._request.options.table)

    def reader(self, schema: StructType) -> NamesrvReader:
        """A reader of the tables as they are now, or of the columns of a schema. Raises ValueError."""
        from route_pipeline.batch_reader import NamesrvReader  # noqa: PLC0415

        with text_first(ValueError):
            return NamesrvReader(self._request.with_schema(_columns_of(schema)))

    def streamReader(self, schema: StructType) -> NamesrvStreamReader:  # noqa: N802 - Spark's name
        """A reader of the tables as they are now and of every change from then on. Raises ValueError."""
        from route_pipeline.stream_reader import NamesrvStreamReader  # noqa: PLC0415

        with text_first(ValueError):
            request = ReadRequest.of(self.options, STREAMING).with_schema(_columns_of(schema))
            table = request.options.table
            if table != CHANGES:
                raise ValueError(f"option 'table' is {table!r}; a stream is of table {CHANGES!r}: say so")
        return NamesrvStreamReader(request)


def _columns_of(schema: StructType) -> list[tuple[str, str, bool]]:
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields]


def register(spark: SparkSession) -> None:
    """Makes the formats ``namesrv`` and ``namesrv_log`` known to a session.

    Raises:
        WorkerPythonError: The session's workers run a Python that cannot read it; one line that says what to set.
    """
    if not is_remote():
        check_worker_python(spark.sparkContext.pythonExec)
    from route_pipeline.log_sink import RouteLogSink  # noqa: PLC0415 - a program that only reads need not wait for it

    spark.dataSource.register(NamesrvDataSource)
    spark.dataSource.register(RouteLogSink)


def pin(options: Mapping[str, str]) -> dict[str, str]:
    """Pins one revision of each name server for several queries. Returns the options with which they read it.

    ::

        options = pin({"endpoints": "10.0.0.1:9876", "pinSeconds": "300"})
        topics = spark.read.format("namesrv").options(**options).load()
        brokers = spark.read.format("namesrv").options(**options, table="brokers").load()

    Raises:
        NamesrvError: As for a read with these options.
        ValueError: An option is wrong.
    """
    from route_pipeline.batch_reader import NamesrvReader  # noqa: PLC0415

    parts = [one.value for one in NamesrvReader(ReadRequest.of(options)).partitions()]
    endpoints = ",".join(str(part.endpoint) for part in parts)
    return {**options, "endpoints": endpoints, "pins": ",".join(f"{part.endpoint}={part.pin_id}" for part in parts)}
