"""The data source through Spark Connect. `python -m tests.spark` brings what its client needs: pandas, among others."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from namesrv_common.printable import how_to_install
from route_pipeline.data_source import register
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import BIN, NamesrvProcess, eventually, unused_port
from tests.support.spark_session import ensure_java_home

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
"""What Spark's start-connect-server.sh starts, which not every installation has."""
START_SECONDS = 240.0
NEEDED = ("pandas", "grpc_status", "zstandard")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session at a server of its own."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        pytest.skip(f"Spark Connect needs {', '.join(missing)}: {how_to_install('spark-connect')}; or tests.spark")
    ensure_java_home()
    folder = tmp_path_factory.mktemp("connect")
    port = unused_port()
    settings = {
        "spark.master": "local[2,2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    with (folder / "log").open("w") as said:
        server = subprocess.Popen(
            [
                BIN / "spark-submit",
                "--class",
                SERVER,
                *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
                "spark-internal",
            ],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            cwd=folder,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        eventually(lambda: "Spark Connect server started" in (folder / "log").read_text(), within_seconds=START_SECONDS)
        session: Any = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        yield session
        session.stop()
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(3 * TIMEOUT)


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
