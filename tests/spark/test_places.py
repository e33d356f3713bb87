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

import pyspark
import pytest

from route_pipeline.log.place import Place
from route_pipeline.questions import questions
from tests.support.java_home import ensure_java_home
from tests.support.programs.processes import BIN, NamesrvProcess, eventually

ROOT = Path(__file__).parents[2]
SUBMIT = ROOT / "deploy" / "spark" / "submit.sh"
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


def run(program: list[str | Path], namesrv: NamesrvProcess, folder: Path, **variables: str) -> str:
    """Runs the job to its end; what it said."""
    done = subprocess.run(
        [*program, str(namesrv.endpoint), folder / "log", folder / "checkpoint"],
        env={**os.environ, **ON_LOOPBACK, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def topics(folder: Path) -> list[str]:
    """The topics in a log, each as often as it is there."""
    with questions(Place(str(folder / "log"))) as asked:
        rows = asked.ask("select topic from log where table_name = 'topic_queues' order by topic")
    return [row["topic"] for row in rows]


@pytest.mark.usefixtures("applications")
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_the_job_of_the_examples_runs_on_one_machine(namesrv: NamesrvProcess, tmp_path: Path, master: str) -> None:
    program: list[str | Path] = ["sh", SUBMIT]
    run(program, namesrv, tmp_path, MASTER=master, PYTHON=sys.executable)
    assert topics(tmp_path) == ["Other", "TopicTest"]


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


def test_the_submit_script_runs_the_job_on_a_cluster_and_goes_on_where_it_was(
    namesrv: NamesrvProcess, master: str, tmp_path: Path
) -> None:
    submit: list[str | Path] = ["sh", SUBMIT]
    # Outside the image it finds the Python of an active environment, and a Java by itself.
    variables = {"MASTER": master, "PYTHON": "", "VIRTUAL_ENV": sys.prefix, "JAVA_HOME": ""}
    run(submit, namesrv, tmp_path, **variables)
    assert "0 rows to" in run(submit, namesrv, tmp_path, **variables)
    assert topics(tmp_path) == ["Other", "TopicTest"]


def test_the_submit_script_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "python").touch(0o755)
    without_master = {name: value for name, value in os.environ.items() if name != "MASTER"}
    without_spark = without_master | {"MASTER": "spark://localhost:1", "PYTHON": str(tmp_path / "python")}
    for variables, problem in (
        (without_spark, f"no spark-submit beside {tmp_path / 'python'}: pip install"),
        (without_master, "MASTER is the URL of the cluster"),
    ):
        command: list[str | Path] = ["sh", SUBMIT, "ingest"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert problem in done.stderr
