"""The Spark data source ``namesrv``: the route tables of running name servers, and how they change.

docs/spark.md describes its tables and options. A plan pins one revision of each name server. All tasks, their
retries, and all actions on one DataFrame read that revision. A new ``load()`` reads the next one.

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

from route_pipeline.options import STREAMING, ReadRequest
from route_pipeline.schemas import CHANGES, spark_ddl
from route_pipeline.spark_errors import text_first
from route_pipeline.worker_python import check_worker_python

if TYPE_CHECKING:
    from route_pipeline.spark_readers import NamesrvReader, NamesrvStreamReader


class NamesrvDataSource(DataSource):
    """Route tables of running name servers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Checks the options: Spark makes the source at ``load()``, also where a schema is given."""
        super().__init__(cast("dict[str, str]", options))
        with text_first(ValueError):
            self._request = ReadRequest.of(options)

    @classmethod
    def name(cls) -> str:
        return "namesrv"

    def schema(self) -> str:
        """The schema of the table."""
        return spark_ddl(self._request.options.table)

    def reader(self, schema: StructType) -> NamesrvReader:  # noqa: ARG002 - Spark's method
        """A reader of the tables as they are now."""
        from route_pipeline.spark_readers import NamesrvReader  # noqa: PLC0415

        return NamesrvReader(self._request)

    def streamReader(self, schema: StructType) -> NamesrvStreamReader:  # noqa: ARG002, N802 - Spark's method
        """A reader of the tables as they are now and of every change from then on. Raises ValueError."""
        from route_pipeline.spark_readers import NamesrvStreamReader  # noqa: PLC0415

        with text_first(ValueError):
            request = ReadRequest.of(self.options, STREAMING)
            table = request.options.table
            if table != CHANGES:
                raise ValueError(f"option 'table' is {table!r}; a stream is of table {CHANGES!r}: say so")
        return NamesrvStreamReader(request)


def register(spark: SparkSession) -> None:
    """Makes the formats ``namesrv`` and ``namesrv_log`` known to a session. Raises RuntimeError."""
    if not is_remote():
        check_worker_python(spark.sparkContext.pythonExec)
    from route_pipeline.log_sink import RouteLogSink  # noqa: PLC0415 - a program that only reads need not wait for it

    spark.dataSource.register(NamesrvDataSource)
    spark.dataSource.register(RouteLogSink)
