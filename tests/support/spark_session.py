"""One Spark session for all tests: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from route_pipeline.session import QUICK_START, spark_session
from tests.support.programs.s3_server import name_s3_server

FAST_START = QUICK_START["spark.driver.defaultJavaOptions"]
"""Java options that halve the time of short jobs."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores; tasks are tried twice, because some failures show only when a task is repeated."""
    folder = tmp_path_factory.mktemp("spark")
    name_s3_server()
    conf = {
        "spark.driver.defaultJavaOptions": FAST_START,
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with spark_session("local[2,2]", conf) as session:
        yield session
