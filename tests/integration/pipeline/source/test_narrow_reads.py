"""Reads of less: some of the columns, and rows that a query's filters leave."""

from __future__ import annotations

import sys

import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from route_pipeline.batch_reader import FilteringReader, NamesrvReader
from route_pipeline.data_source import _PUSHING, NamesrvDataSource
from route_pipeline.options import ReadRequest
from route_pipeline.stream_reader import NamesrvStreamReader
from tests.support.fakes.snapshot_name_server import (
    FakeNamesrv,
    fleet_chunk,
    put,
    queue,
    serving,
    snapshot,
    topics_chunk,
)

ROUTES = topics_chunk(Alpha=[queue("broker-a"), queue("broker-b")], Beta=[queue("broker-a")], Gamma=[queue("broker-b")])


def reader(fake: FakeNamesrv, **options: str) -> NamesrvReader:
    return NamesrvReader(ReadRequest.of_options({"endpoints": str(fake.endpoint), **options}))


def test_only_the_columns_that_are_asked_for_are_handed_on() -> None:
    options = {"columns": "broker_name, topic"}
    with serving(snapshot(ROUTES)) as fake:
        source = NamesrvDataSource(CaseInsensitiveDict({"endpoints": str(fake.endpoint), **options}))
        (part,) = source.reader(StructType()).partitions()
        (batch,) = source.reader(StructType()).read(part)
    assert batch.schema.names == ["topic", "broker_name"]
    assert [one.split()[0] for one in source.schema().split(", ") if " NOT NULL" in one] == ["topic", "broker_name"]


def test_a_stream_has_the_columns_that_are_asked_for() -> None:
    with serving(snapshot(fleet_chunk(id0="10.0.0.1:10911"))) as fake:
        fake.changes = {8: [put("Alpha", queue("broker-a"))]}
        options = {"endpoints": str(fake.endpoint), "table": "changes", "columns": "revision,op"}
        stream = NamesrvStreamReader(ReadRequest.of_options(options, streaming=True))
        start = stream.initialOffset()
        for _ in range(2):
            end = stream.latestOffset(start, stream.getDefaultReadLimit())
            for part in stream.partitions(start, end):
                assert all(batch.schema.names == ["revision", "op"] for batch in stream.read(part))
            start, fake.revision = end, 8


def test_a_column_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="has 'broker', which is no column of table brokers: did you mean 'broker_"):
        ReadRequest.of_options({"endpoints": "a:1", "table": "brokers", "columns": "broker"})


@pytest.mark.parametrize(
    ("filters", "options", "left"),
    [
        ([EqualTo(("topic",), "Alpha")], {}, ["Alpha", "Alpha"]),
        ([In(("topic",), ("Beta", "Gamma", "None"))], {}, ["Beta", "Gamma"]),
        ([StringStartsWith(("topic",), "G")], {}, ["Gamma"]),
        ([EqualTo(("broker_name",), "broker-b")], {}, ["Alpha", "Gamma"]),
        ([EqualTo(("broker_name",), "broker-b"), EqualTo(("topic",), "Gamma")], {}, ["Gamma"]),
        ([EqualTo(("cluster_name",), "DefaultCluster")], {}, ["Alpha", "Alpha", "Beta", "Gamma"]),
        ([GreaterThan(("perm",), 4), EqualTo(("topic",), None)], {}, ["Alpha", "Alpha", "Beta", "Gamma"]),
        ([EqualTo(("topic",), "Alpha")], {"topics": "B*"}, ["Beta"]),  # nothing is left of it: Spark sees to that
    ],
)
def test_rows_that_a_filter_leaves_out_are_left_out_early_and_spark_looks_again(
    filters: list[Filter], options: dict[str, str], left: list[str]
) -> None:
    with serving(snapshot(ROUTES)) as fake:
        filtering = FilteringReader(ReadRequest.of_options({"endpoints": str(fake.endpoint), **options}))
        assert list(filtering.pushFilters(filters)) == filters
        (part,) = filtering.partitions()
        topics = [topic for batch in filtering.read(part) for topic in batch["topic"].to_pylist()]
    assert sorted(topics) == left


def test_a_reader_takes_filters_only_where_spark_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = NamesrvDataSource(CaseInsensitiveDict({"endpoints": "a:1"}))
    assert type(source.reader(StructType())) is NamesrvReader
    monkeypatch.setitem(sys.modules, _PUSHING, sys)
    assert type(source.reader(StructType())) is FilteringReader
