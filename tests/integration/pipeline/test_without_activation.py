"""A script that is started by the Python of an environment which is not on the PATH, as a notebook's kernel is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import identity, registration

SCRIPT = """
import sys
from pyspark.sql import SparkSession
import route_pipeline
from route_pipeline.data_source import register

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    register(spark)
except RuntimeError as error:
    print(error)
spark.stop()

with route_pipeline.spark_session("local[1]") as spark:
    for row in spark.read.format("namesrv").option("endpoints", sys.argv[1]).load().collect():
        print(row["topic"])
"""
PATH = "/usr/bin:/bin"
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_register_says_what_to_set_and_spark_session_sets_it(tmp_path: Path) -> None:
    if shutil.which("python3", path=PATH) == sys.executable:
        pytest.skip("the tests run the system's own Python, which every script finds")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with NamesrvProcess("--scan-not-active-broker-interval-millis", "0") as namesrv, namesrv.connect() as client:
        client.registration.RegisterBroker(registration(["TopicTest"], identity()), timeout=20)
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "VIRTUAL"))}
        variables |= {"PATH": PATH, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": java_home()}
        command: list[str | Path] = [sys.executable, script, str(namesrv.endpoint)]
        done = subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=500, check=False
        )
    assert done.returncode == 0, done.stderr
    problem, topic = done.stdout.splitlines()
    assert problem.startswith("Spark's Python workers run 'python3', which ")
    assert problem.endswith("set os.environ['PYSPARK_PYTHON'] = sys.executable before it is made")
    assert topic == "TopicTest"


def java_home() -> str:
    """A Java that a session finds that is not ours."""
    if "JAVA_HOME" in os.environ:
        return os.environ["JAVA_HOME"]
    java = shutil.which("java")
    if java is None:
        pytest.skip("there is no java on the PATH, which a session of Spark's own needs")
    return str(Path(java).resolve().parent.parent)
