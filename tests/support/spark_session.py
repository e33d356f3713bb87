"""One Spark session for all tests: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from route_pipeline.session import spark_session
from tests.support.java_home import ensure_java_home
from tests.support.programs.s3_server import name_s3_server

QUICK_START = {
    # With one compiler Java keeps 48 MiB for code. Some dozens of queries fill them, and then it compiles no more.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
}
"""Settings that halve the time of short jobs, and make long ones slower."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores; tasks are tried twice, because some failures show only when a task is repeated."""
    folder = tmp_path_factory.mktemp("spark")
    name_s3_server()
    ensure_java_home()
    conf = QUICK_START | {
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with spark_session("local[2,2]", conf) as session:
        yield session
