"""Where the pipeline runs: a cluster inside one process, a standalone cluster of processes, and spark-submit to it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pyspark
import pytest

from route_pipeline.java import ensure_java_home
from route_pipeline.log import files
from tests.support.programs.processes import BIN, NamesrvProcess, eventually

SUBMIT = Path(__file__).parents[2] / "deploy" / "spark" / "submit.sh"
RUN_SECONDS = 300
"""For one ingest with the start of its executors, on a busy machine."""
START_SECONDS = 120.0
ON_LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def applications() -> Iterator[None]:
    """Takes away what a cluster inside one process leaves in the installed PySpark."""
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.glob("app-*"))
    yield
    for folder in set(work.glob("app-*")) - before:
        shutil.rmtree(folder)


def ingest(program: list[str | Path], namesrv: NamesrvProcess, out: Path, *more: str, **variables: str) -> str:
    """Runs one ingest to its end; what it said."""
    done = subprocess.run(
        [*program, "ingest", "--namesrv", str(namesrv.endpoint), "--out", out, *more],
        env={**os.environ, **ON_LOOPBACK, **variables},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr  # spark-submit sends both of the program to its standard output


def topics(out: Path) -> list[str]:
    """The topics in a log, each as often as it is there."""
    rows = ds.dataset(files(out)).to_table(columns=["table_name", "topic"]).to_pylist()
    return sorted(row["topic"] for row in rows if row["table_name"] == "topic_queues")


@pytest.mark.usefixtures("applications")
def test_a_cluster_inside_one_process_ingests(namesrv: NamesrvProcess, tmp_path: Path) -> None:
    ingest([BIN / "route-pipeline"], namesrv, tmp_path / "log", "--master", "local-cluster[2,1,1024]")
    assert topics(tmp_path / "log") == ["Other", "TopicTest"]


@contextmanager
def spark_process(log: Path, *arguments: str | Path) -> Iterator[None]:
    """A master or worker, in a process group of its own, which is ended at the end."""
    with log.open("w") as said:
        process = subprocess.Popen(
            [BIN / "spark-class", *arguments],
            env={**os.environ, **ON_LOOPBACK},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(START_SECONDS)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone cluster as an operator starts it: one master, one worker with two executors' worth of cores."""
    ensure_java_home()
    folder = tmp_path_factory.mktemp("cluster")
    package = "org.apache.spark.deploy"
    on = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with spark_process(folder / "master", f"{package}.master.Master", *on):
        found = eventually(
            lambda: re.search(r"Starting Spark master at (spark://\S+)", (folder / "master").read_text()),
            within_seconds=START_SECONDS,
        )
        assert found is not None
        size = ("--cores", "2", "--memory", "1g", "--work-dir", folder / "work")
        with spark_process(folder / "worker", f"{package}.worker.Worker", *on, *size, found[1]):
            eventually(
                lambda: "Successfully registered" in (folder / "worker").read_text(), within_seconds=START_SECONDS
            )
            yield found[1]


def test_a_standalone_cluster_ingests(namesrv: NamesrvProcess, master: str, tmp_path: Path) -> None:
    ingest([BIN / "route-pipeline"], namesrv, tmp_path / "log", "--master", master)
    assert topics(tmp_path / "log") == ["Other", "TopicTest"]


def test_the_submit_script_ingests_and_goes_on_where_it_was(
    namesrv: NamesrvProcess, master: str, tmp_path: Path
) -> None:
    submit: list[str | Path] = ["sh", SUBMIT]
    # Outside the image it finds the Python of an active environment, and a Java by itself.
    variables = {"MASTER": master, "PYTHON": "", "VIRTUAL_ENV": sys.prefix, "JAVA_HOME": ""}
    ingest(submit, namesrv, tmp_path / "log", **variables)
    assert "0 rows appended" in ingest(submit, namesrv, tmp_path / "log", **variables)
    assert topics(tmp_path / "log") == ["Other", "TopicTest"]


def test_the_submit_script_says_where_spark_is_missing(tmp_path: Path) -> None:
    (tmp_path / "python").touch(0o755)
    variables = {**os.environ, "MASTER": "spark://localhost:1", "PYTHON": str(tmp_path / "python")}
    done = subprocess.run(
        ["sh", SUBMIT, "ingest"], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"no spark-submit beside {tmp_path / 'python'}: pip install" in done.stderr


def test_the_submit_script_says_what_it_misses(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "MASTER"}
    done = subprocess.run(
        ["sh", SUBMIT, "ingest"], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "MASTER is the URL of the cluster" in done.stderr
