"""The data source's objects, called as Spark calls them, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from groundwork.endpoints import Endpoint
from route_pipeline import schemas
from route_pipeline.data_source import EndpointPartition, NamesrvDataSource, ReadRequest
from tests.unit.route_pipeline.fake_namesrv import fleet_chunk, queue, serving, snapshot, topics_chunk


def data_source(**options: str) -> NamesrvDataSource:
    return NamesrvDataSource(CaseInsensitiveDict(options))


def test_the_format_is_called_namesrv() -> None:
    assert NamesrvDataSource.name() == "namesrv"


def test_there_is_one_partition_for_each_name_server() -> None:
    reader = data_source(endpoints="a:1; b:2").reader(StructType())

    assert reader.partitions() == [EndpointPartition(Endpoint("a", 1)), EndpointPartition(Endpoint("b", 2))]


def test_a_reader_and_its_partitions_travel_by_pickle_and_read_there() -> None:
    chunks = [fleet_chunk(id0="10.0.0.1:10911"), topics_chunk(TopicTest=[queue("broker-a")])]
    with serving(snapshot(*chunks)) as fake:
        planned = data_source(endpoints=str(fake.endpoint)).reader(StructType())
        pickled = cloudpickle.dumps((planned, planned.partitions()))  # type: ignore[no-untyped-call]
        reader, partitions = cloudpickle.loads(pickled)
        table = pa.Table.from_batches(reader.read(partitions[0]))
    assert table.column("topic").to_pylist() == ["TopicTest"]


def test_options_are_read_whatever_their_case() -> None:
    request = ReadRequest.of_options(
        CaseInsensitiveDict(
            {"ENDPOINTS": "a:1", "Table": "brokers", "timeoutseconds": "2.5", "connectTimeoutSeconds": "1"}
        )
    )

    assert (request.table, request.timeouts.total, request.timeouts.connect) == ("brokers", 2.5, 1.0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option 'endpoints' is missing"),
        ({"endpoints": "a:1", "tabel": "brokers"}, "option 'tabel' is unknown"),
        ({"endpoints": "a:1", "path": "/x"}, "option 'path' is unknown"),
        ({"endpoints": "a:1", "table": "topics"}, "option 'table' is 'topics', not one of topic_queues"),
        ({"endpoints": "a"}, "option 'endpoints': address 'a' has no port"),
        ({"endpoints": "a:1,,b:2"}, "empty element"),
        ({"endpoints": "a:1", "timeoutSeconds": "soon"}, "option 'timeoutSeconds' is 'soon'"),
        ({"endpoints": "a:1", "timeoutSeconds": "0"}, "option 'timeoutSeconds' is '0'"),
        ({"endpoints": "a:1", "timeoutSeconds": "nan"}, "option 'timeoutSeconds' is 'nan'"),
        ({"endpoints": "a:1", "connectTimeoutSeconds": "86401"}, "option 'connectTimeoutSeconds' is '86401'"),
    ],
)
def test_a_wrong_option_is_named_when_spark_asks_for_the_schema(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        data_source(**options).schema()


@pytest.mark.parametrize("table", schemas.TABLES)
def test_every_table_starts_with_the_origin_of_its_rows(table: str) -> None:
    assert schemas.arrow_schema(table).names[:4] == ["namesrv", "epoch", "revision", "taken_at"]
    assert data_source(endpoints="a:1", table=table).schema().startswith("namesrv STRING NOT NULL COMMENT")
