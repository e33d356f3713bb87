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

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from pyspark.sql import SparkSession, is_remote
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from namesrv_common.endpoints import Endpoint
from route_pipeline.options import DEFAULT_PIN_SECONDS, FORMAT, Connecting, OnCold, Options, ReadRequest
from route_pipeline.schemas import CHANGES, spark_ddl
from route_pipeline.spark_errors import text_first
from route_pipeline.worker_python import check_worker_python

if TYPE_CHECKING:
    from route_pipeline.batch_reader import NamesrvReader
    from route_pipeline.stream_reader import NamesrvStreamReader

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class NamesrvDataSource(DataSource):
    """Route tables of running name servers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Checks the options: Spark makes the source at ``load()``, also where a schema is given."""
        super().__init__(cast("dict[str, str]", options))
        with text_first(ValueError):
            self._request = ReadRequest.of_options(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """The schema of the table."""
        return spark_ddl(self._request.options.table, self._request.columns)

    def reader(self, schema: StructType) -> NamesrvReader:
        """A reader of the tables as they are now, or of the columns of a schema. Raises ValueError."""
        from route_pipeline.batch_reader import FilteringReader, NamesrvReader  # noqa: PLC0415

        with text_first(ValueError):
            request = self._request.with_schema(_columns_of(schema))
        return FilteringReader(request) if _filters_are_pushed() else NamesrvReader(request)

    def streamReader(self, schema: StructType) -> NamesrvStreamReader:  # noqa: N802 - Spark's name
        """A reader of the tables as they are now and of every change from then on. Raises ValueError."""
        from route_pipeline.stream_reader import NamesrvStreamReader  # noqa: PLC0415

        with text_first(ValueError):
            request = ReadRequest.of_options(self.options, streaming=True).with_schema(_columns_of(schema))
            table = request.options.table
            if table != CHANGES:
                raise ValueError(f"option 'table' is {table!r}; a stream is of table {CHANGES!r}: say so")
        return NamesrvStreamReader(request)


def _columns_of(schema: StructType) -> list[tuple[str, str, bool]]:
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields]


def _filters_are_pushed() -> bool:
    """Whether ``spark.sql.python.filterPushdown.enabled`` is on; seen from which of its programs Spark plans with."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)


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


def pin(
    endpoints: Sequence[Endpoint],
    seconds: int = DEFAULT_PIN_SECONDS,
    connecting: Connecting = Connecting(),  # noqa: B008 (frozen)
    on_cold: OnCold = "fail",
) -> dict[str, str]:
    """Pins one revision of each name server for several queries.

    ::

        options = pin(parse_endpoints("10.0.0.1:9876"))
        topics = spark.read.format("namesrv").options(**options).load()
        brokers = spark.read.format("namesrv").options(**options, table="brokers").load()

    Args:
        endpoints: Where the name servers listen.
        seconds: How long each is kept unless it is read from, 1 to 3600. Call :func:`unpin` if you are done before.
        connecting: How to connect to them.
        on_cold: As the option ``onCold``.

    Returns:
        Options ``endpoints``, ``pins`` and ``onCold``.

    Raises:
        NamesrvError: A name server cannot be reached, or holds as many snapshots as it may.
        ColdError: A name server is warming up (with ``wait``: still, after ``timeoutSeconds``).
    """
    from route_pipeline.name_server import pin_warm_snapshot  # noqa: PLC0415

    pins = {str(endpoint): pin_warm_snapshot(endpoint, connecting, seconds, on_cold).pin_id for endpoint in endpoints}
    return {
        "endpoints": ",".join(pins),
        "pins": ",".join(f"{endpoint}={pin_id}" for endpoint, pin_id in pins.items()),
        "onCold": on_cold,
    }


def unpin(
    options: Mapping[str, str],
    connecting: Connecting = Connecting(),  # noqa: B008 (frozen)
) -> None:
    """Releases what :func:`pin` has pinned. DataFrames of these snapshots cannot be read again."""
    from route_pipeline.name_server import release_snapshot  # noqa: PLC0415

    for endpoint, pin_id in Options.of(options).pins.items():
        release_snapshot(endpoint, connecting, pin_id)
