"""The data source through Spark Connect. `python -m tests.spark` brings what its client needs: pandas, among others."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from namesrv_common.printable import how_to_install
from route_pipeline.data_source import register
from tests.support.programs.processes import NamesrvProcess
from tests.support.spark_session import ensure_java_home

NEEDED = ("pandas", "grpc_status", "zstandard")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session at a server of its own."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        pytest.skip(f"Spark Connect needs {', '.join(missing)}: {how_to_install('spark-connect')}; or tests.spark")
    ensure_java_home()
    variables = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.sql.warehouse.dir={tmp_path_factory.mktemp('warehouse')} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # it listens on any free port
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        session: Any = SparkSession.builder.remote("local[2,2]").getOrCreate()
        yield session
        session.stop()


@pytest.mark.parametrize("registered", [False, True], ids=["found by itself", "registered"])
def test_a_table_is_read(spark: SparkSession, namesrv: NamesrvProcess, registered: bool) -> None:
    if registered:
        register(spark)
    rows = spark.read.format("namesrv").option("endpoints", str(namesrv.endpoint)).load().collect()
    assert sorted(row["topic"] for row in rows) == ["Other", "TopicTest"]


def test_a_stream_is_read(spark: SparkSession, namesrv: NamesrvProcess, tmp_path: Path) -> None:
    register(spark)
    stream = spark.readStream.format("namesrv").options(endpoints=str(namesrv.endpoint), table="changes").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).where("table_name = 'topic_queues'").collect()
    assert sorted(row["topic"] for row in rows) == ["Other", "TopicTest"]
