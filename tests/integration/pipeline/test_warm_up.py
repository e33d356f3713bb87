"""The warm-up that a session begins with: what it does before a first read, and a session that ends before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.programs.processes import NamesrvProcess
from support.registrations import identity, registration

FIRST_READ = """
import sys
import threading
from pathlib import Path
import route_pipeline

def daemons(spark):
    java = str(spark.sparkContext._gateway.proc.pid)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            arguments = (process / "cmdline").read_text().split(chr(0))
        except OSError:
            continue
        if parent == java and "pyspark.daemon" in arguments:
            found.append(arguments[-2].rpartition(".")[2])
    return " ".join(sorted(found))

with route_pipeline.spark_session("local[1]") as spark:
    for thread in threading.enumerate():
        if thread.name == "namesrv-warm-up":
            thread.join()
    print(daemons(spark))
    routes = spark.read.format("namesrv").option("endpoints", sys.argv[1]).load()
    print(*[row["topic"] for row in routes.collect()])
    print(daemons(spark))
"""

NO_READ = """
import route_pipeline

with route_pipeline.spark_session("local[1]"):
    pass
spark = route_pipeline.spark_session("local[1]")
print(spark.range(3).count())
"""
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def run(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def test_a_first_read_after_the_warm_up_starts_no_python_of_its_own(tmp_path: Path) -> None:
    with NamesrvProcess("--scan-not-active-broker-interval-millis", "0") as namesrv, namesrv.connect() as client:
        client.registration.RegisterBroker(registration(["TopicTest"], identity()), timeout=20)
        done = run(FIRST_READ, tmp_path, str(namesrv.endpoint))
    assert done.returncode == 0, done.stderr
    before, topics, after = done.stdout.splitlines()
    assert topics == "TopicTest"
    assert before == after == "create_data_source lookup_data_sources plan_data_source_read worker"


def test_a_session_that_is_stopped_and_a_program_that_ends_during_the_warm_up_say_nothing_of_it(tmp_path: Path) -> None:
    done = run(NO_READ, tmp_path)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert [line for line in done.stderr.splitlines() if "incubator modules" not in line] == []
