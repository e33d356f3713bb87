"""What the program refuses before it starts Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from groundwork.printable import how_to_install
from groundwork.version import __version__
from route_pipeline import java
from route_pipeline.commands import app
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.spark_errors import one_line


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result: Result, problem: str) -> None:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


def test_it_says_its_version() -> None:
    assert run("--version").stdout == f"route-pipeline {__version__}\n"


@pytest.mark.parametrize(
    ("namesrv", "problem"),
    [
        ("", "empty element"),
        ("a:1,,b:2", "empty element"),
        ("a", "has no port"),
        ("a:1;a:1", "twice"),
        ("a:99999", "not a number from 1 to 65535"),
    ],
)
def test_a_bad_list_of_name_servers_is_refused(tmp_path: Path, namesrv: str, problem: str) -> None:
    assert_refused(run("ingest", "--namesrv", namesrv, "--out", tmp_path / "out"), problem)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("onCompacted", "is not NAME=VALUE"),
        ("onCompacted=resink", "option 'onCompacted' is 'resink', not one of fail, resync: did you mean 'resync'?"),
        ("ONCOMPACTED=resink", "option 'onCompacted' is 'resink'"),
        ("onCompact=fail", "did you mean 'onCompacted'?"),
        ("table=brokers", "the log is of everything"),
    ],
)
def test_a_bad_option_is_refused_before_spark_starts(tmp_path: Path, option: str, problem: str) -> None:
    result = run("ingest", "--namesrv", "a:1", "--out", tmp_path / "out", "--option", option)
    assert_refused(result, problem)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["ingest", "follow"])
def test_a_sink_that_cannot_work_is_refused_and_nothing_is_made(tmp_path: Path, command: str) -> None:
    result = run(command, "--namesrv", "a:1", "--out", tmp_path / "out", "--sink", "orc")
    assert_refused(result, "sink 'orc' is not one of parquet, delta")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["ftp://host/log", "s3://", "s3://no client/log*"])
def test_a_place_that_cannot_be_is_refused(place: str) -> None:
    assert_refused(run("ingest", "--namesrv", "a:1", "--out", place), place)


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    assert_refused(run("as-of", tmp_path, "yesterday", "TopicTest"), "TIME 'yesterday' is not a time")


def test_an_output_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()

    assert_refused(run("ingest", "--namesrv", "a:1", "--out", tmp_path), "holds something else")


def test_a_report_of_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert_refused(run("report", tmp_path / "none"), "is not a folder")


def test_a_report_without_an_ingest_is_refused(tmp_path: Path) -> None:
    RouteLog.create(tmp_path)

    assert_refused(run("report", tmp_path), "has no ingest yet")


def test_without_java_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_java", lambda _environ: None)

    assert_refused(run("ingest", "--namesrv", "a:1", "--out", tmp_path / "out"), "Spark needs Java 17 or later")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("library", ["pyspark", "pyarrow", "rich"])
def test_without_spark_or_a_library_one_line_says_what_to_install(library: str) -> None:
    without = f"import sys; sys.modules[{library!r}] = None; from route_pipeline.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"route-pipeline: {library} is missing; {how_to_install('route-pipeline')}\n"


def test_a_master_that_spark_does_not_know_is_refused(tmp_path: Path) -> None:
    result = run("ingest", "--namesrv", "a:1", "--out", tmp_path / "out", "--master", "http://x")

    assert result.exit_code == 2
    assert "master 'http://x' does not start with one of local" in result.stderr


def test_our_own_error_is_found_inside_the_traces_of_spark() -> None:
    text = (
        "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted\n"
        "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        "route_pipeline.name_server.NamesrvError: name server a:1: UNAVAILABLE: gone\n\n"
        "\tat org.apache.spark.api.python.Foo\n"
    )
    assert one_line(RuntimeError(text)) == "name server a:1: UNAVAILABLE: gone"


def test_of_a_java_trace_the_innermost_cause_is_told() -> None:
    trace = "An error occurred while calling o1.parquet.\n: org.X: Job aborted\n\tat a.b\n"
    assert one_line(RuntimeError(trace)) == "org.X: Job aborted"
    assert one_line(RuntimeError(f"{trace}Caused by: c\n\tat d\nCaused by: No space left\n")) == "No space left"


def test_an_error_of_sparks_own_is_cut_to_its_first_line() -> None:
    assert one_line(RuntimeError("\n[NO_SPACE] disk full\n\tat java.io")) == "[NO_SPACE] disk full"
    assert one_line(RuntimeError()) == "RuntimeError"
