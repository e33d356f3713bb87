"""The Spark data source ``namesrv``: the route tables of running name servers.

::

    register(spark)
    spark.read.format("namesrv").option("endpoints", "10.0.0.1:9876,10.0.0.2:9876").load()

Options:

``endpoints``
    Required. Addresses of the name servers, separated by ``,``, ``;`` or white space. Each is one partition.
``table``
    ``topic_queues`` (default), ``brokers``, ``clusters``, ``snapshots`` (one row for each name server) or
    ``whole_snapshot`` (all of these in one stream, so that all are of one revision: a struct column each).
``connectTimeoutSeconds``, ``timeoutSeconds``
    How long one attempt to connect and the whole read of one name server may take; default 5 and 300.

Each action reads anew: two actions, and two tables, may see different revisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from groundwork.endpoints import Endpoint, parse_endpoints
from route_pipeline.schemas import TABLES, TOPIC_QUEUES, spark_ddl
from route_pipeline.snapshot_reader import Timeouts
from route_pipeline.snapshot_tables import read_table

FORMAT = "namesrv"
"""Name of the data source in Spark."""

MAX_TIMEOUT_SECONDS = 86_400.0
"""Longest timeout: a day. What takes longer hangs."""

_OPTIONS = ("endpoints", "table", "connectTimeoutSeconds", "timeoutSeconds")


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read: the options, checked."""

    endpoints: tuple[Endpoint, ...]
    """Name servers to read from."""
    table: str
    """One of :data:`route_pipeline.schemas.TABLES`."""
    timeouts: Timeouts
    """How long to wait."""

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> ReadRequest:
        """Checks the options of a read.

        Args:
            options: Spark's options. They are asked by ``get`` only: Spark's mapping ignores case, but lists its
                keys in lower case.

        Raises:
            ValueError: An option is unknown or missing, or its value breaks its rule; the message names it.
        """
        known = {option.lower() for option in _OPTIONS}
        unknown = sorted(key for key in options if key.lower() not in known)
        if unknown:
            raise ValueError(f"option {unknown[0]!r} is unknown to {FORMAT}, which has {', '.join(_OPTIONS)}")
        endpoints = options.get("endpoints")
        if endpoints is None:
            raise ValueError("option 'endpoints' is missing: write host:port,host:port")
        table = options.get("table", TOPIC_QUEUES)
        if table not in TABLES:
            raise ValueError(f"option 'table' is {table!r}, not one of {', '.join(TABLES)}")
        try:
            parsed = parse_endpoints(endpoints)
        except ValueError as error:
            raise ValueError(f"option 'endpoints': {error}") from error
        timeouts = Timeouts(
            connect=_seconds(options, "connectTimeoutSeconds", Timeouts().connect),
            total=_seconds(options, "timeoutSeconds", Timeouts().total),
        )
        return cls(parsed, table, timeouts)


@dataclass(frozen=True)
class EndpointPartition(InputPartition):
    """One name server's part of a table."""

    endpoint: Endpoint
    """Where it listens."""


class NamesrvReader(DataSourceReader):
    """Reads a table. Travels to the executors by pickle, so it holds no connection."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request

    def partitions(self) -> list[InputPartition]:
        """One partition for each name server."""
        return [EndpointPartition(endpoint) for endpoint in self._request.endpoints]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads the table of one name server.

        Raises:
            SnapshotError: The snapshot could not be read whole; Spark fails the task.
        """
        assert isinstance(partition, EndpointPartition)
        return read_table(partition.endpoint, self._request.table, self._request.timeouts)


class NamesrvDataSource(DataSource):
    """Route tables of running name servers; see the options at the top of this module."""

    @classmethod
    def name(cls) -> str:
        """The name for ``spark.read.format``."""
        return FORMAT

    def schema(self) -> str:
        """The schema of the table.

        Raises:
            ValueError: An option is wrong. Spark asks for the schema at ``load()``, so it shows there already.
        """
        return spark_ddl(ReadRequest.of_options(self.options).table)

    def reader(self, schema: StructType) -> NamesrvReader:  # noqa: ARG002
        """A reader of the table.

        Raises:
            ValueError: An option is wrong.
        """
        return NamesrvReader(ReadRequest.of_options(self.options))


def register(spark: SparkSession) -> None:
    """Makes the format ``namesrv`` known to a session."""
    spark.dataSource.register(NamesrvDataSource)


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # A NaN is not within any bounds.
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise ValueError(
            f"option {name!r} is {text!r}, not a number of seconds above 0 and up to {MAX_TIMEOUT_SECONDS:g}"
        )
    return seconds
