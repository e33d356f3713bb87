"""Where the pipeline runs on one machine: threads, executors as processes, by spark-submit, and Spark Connect."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from namesrv_common.printable import how_to_install
from release.engine import REPOSITORY, run
from route_pipeline.data_source import register
from route_pipeline.log.place import Place
from route_pipeline.questions import questions
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import identity, registration
from tests.support.spark_session import ensure_java_home

SUBMIT = REPOSITORY / "deploy" / "spark" / "submit.sh"
RUN_SECONDS = 300
"""For one ingest with the start of its executors, on a busy machine."""
ON_LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def namesrv() -> Iterator[NamesrvProcess]:
    """Knows two topics of one broker, which is not seen again."""
    with (
        NamesrvProcess("--name", "ns-a", "--scan-not-active-broker-interval-millis", "0") as server,
        server.connect() as client,
    ):
        client.registration.RegisterBroker(registration(["TopicTest", "Other"], identity()), timeout=TIMEOUT)
        yield server


@pytest.fixture
def applications() -> Iterator[None]:
    """Takes away what a cluster inside one process leaves in the installed PySpark."""
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.glob("app-*"))
    yield
    for folder in set(work.glob("app-*")) - before:
        shutil.rmtree(folder)


@pytest.mark.usefixtures("applications")
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_the_job_of_the_examples_runs_on_one_machine(namesrv: NamesrvProcess, tmp_path: Path, master: str) -> None:
    job = ["sh", str(SUBMIT), str(namesrv.endpoint), str(tmp_path / "log"), str(tmp_path / "checkpoint")]
    environment = {**os.environ, **ON_LOOPBACK, "MASTER": master, "PYTHON": sys.executable}
    run(job, environment=environment, folder=str(REPOSITORY), timeout=RUN_SECONDS)
    with questions(Place(str(tmp_path / "log"))) as asked:
        rows = asked.ask("select topic from log where table_name = 'topic_queues' order by topic")
    assert [row["topic"] for row in rows] == ["Other", "TopicTest"]


def test_the_submit_script_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "python").touch(0o755)
    without_master = {name: value for name, value in os.environ.items() if name != "MASTER"}
    without_spark = without_master | {"MASTER": "spark://localhost:1", "PYTHON": str(tmp_path / "python")}
    for variables, problem in (
        (without_spark, f"no spark-submit beside {tmp_path / 'python'}: pip install"),
        (without_master, "MASTER is the URL of the cluster"),
    ):
        command: list[str | Path] = ["sh", SUBMIT, "ingest"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=3 * TIMEOUT, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert problem in done.stderr


# Spark Connect, last, as its server is in this process. `python -m tests.spark` brings what its client needs.

NEEDED = ("pandas", "grpc_status", "zstandard")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session at a server of its own."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        pytest.skip(f"Spark Connect needs {', '.join(missing)}: {how_to_install('spark-connect')}; or tests.spark")
    ensure_java_home()
    variables = ON_LOOPBACK | {
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.sql.warehouse.dir={tmp_path_factory.mktemp('warehouse')} pyspark-shell",
        "SPARK_TESTING": "1",  # it listens on any free port
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        session: Any = SparkSession.builder.remote("local[2,2]").getOrCreate()
        yield session
        session.stop()


def test_a_table_is_read_through_spark_connect(spark: SparkSession, namesrv: NamesrvProcess) -> None:
    rows = spark.read.format("namesrv").option("endpoints", str(namesrv.endpoint)).load().collect()
    assert sorted(row["topic"] for row in rows) == ["Other", "TopicTest"]


def test_a_stream_is_read_through_spark_connect(spark: SparkSession, namesrv: NamesrvProcess, tmp_path: Path) -> None:
    register(spark)
    stream = spark.readStream.format("namesrv").options(endpoints=str(namesrv.endpoint), table="changes").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).where("table_name = 'topic_queues'").collect()
    assert sorted(row["topic"] for row in rows) == ["Other", "TopicTest"]
