"""The warm-up that a session begins with: what it does before a first read, and a session that ends before it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import identity, registration

SCRIPT = """
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
with route_pipeline.spark_session("local[1]"):
    pass
spark = route_pipeline.spark_session("local[1]")
print(spark.range(3).count())
"""
"""One program for all tests here, as Java takes seconds to start: a session that is waited for until it is warm, one
that is stopped before, and one during whose warm-up the program ends."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.CompletedProcess[str]]:
    """The program, which has ended."""
    with NamesrvProcess("--scan-not-active-broker-interval-millis", "0") as namesrv, namesrv.connect() as client:
        client.registration.RegisterBroker(registration(["TopicTest"], identity()), timeout=20)
        command, folder = [sys.executable, "-c", SCRIPT, str(namesrv.endpoint)], tmp_path_factory.mktemp("program")
        yield subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def test_a_first_read_after_the_warm_up_starts_no_python_of_its_own(
    program: subprocess.CompletedProcess[str],
) -> None:
    before, topics, after, *_ = program.stdout.splitlines()
    assert topics == "TopicTest"
    assert before == after == "create_data_source lookup_data_sources plan_data_source_read worker"


def test_a_session_that_is_stopped_and_a_program_that_ends_during_the_warm_up_say_nothing_of_it(
    program: subprocess.CompletedProcess[str],
) -> None:
    assert (program.returncode, program.stdout.splitlines()[-1]) == (0, "3"), program.stderr
    assert [line for line in program.stderr.splitlines() if "incubator modules" not in line] == []
