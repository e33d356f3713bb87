"""Where the pipeline runs on one machine: threads, and executors as processes, by spark-submit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from deploy.release.engine import REPOSITORY, run
from route_pipeline.log.place import Place
from route_pipeline.questions import questions
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import NamesrvProcess

SUBMIT = REPOSITORY / "deploy" / "spark" / "submit.sh"
RUN_SECONDS = 300
"""For one ingest with the start of its executors, on a busy machine."""
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
