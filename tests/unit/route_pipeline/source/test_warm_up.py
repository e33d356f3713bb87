"""The warm-up of a session: it reads a table like the one that is read first, and nobody hears of its failure."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.data_source import NamesrvDataSource
from route_pipeline.schemas import TOPIC_QUEUES
from route_pipeline.warm_up import WarmUpSource, start_warm_up


def test_it_reads_a_row_of_the_schema_of_topic_queues() -> None:
    source = WarmUpSource(CaseInsensitiveDict())
    assert source.schema() == NamesrvDataSource(CaseInsensitiveDict({"endpoints": "127.0.0.1:9876"})).schema()
    reader = source.reader(StructType())
    (part,) = reader.partitions()
    (batch,) = reader.read(part)
    assert batch.schema.equals(arrow_schema(TOPIC_QUEUES))
    assert batch.num_rows == 1


class StoppedSession:
    """A session that was stopped before its warm-up began."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("SparkContext was shut down")


def test_a_session_that_fails_meanwhile_is_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    thread = start_warm_up(StoppedSession())  # type: ignore[arg-type]
    thread.join(10)
    assert not thread.is_alive()
    assert thread.daemon, "no program waits for it at its end"
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "Spark was not warmed up: SparkContext was shut down")
    ]
