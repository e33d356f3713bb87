"""The check of the Python that Spark's workers run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from route_pipeline.worker_python import WorkerPythonError, check_worker_python


def python(folder: Path, says: str, exit_code: int = 0) -> str:
    """A program that stands for another Python."""
    path = folder / "python3"
    path.write_text(f'#!/bin/sh\necho "{says}"\nexit {exit_code}\n')
    path.chmod(0o755)
    return str(path)


def test_this_python_and_one_that_has_all_are_taken(tmp_path: Path) -> None:
    check_worker_python(sys.executable)
    check_worker_python(python(tmp_path, ""))


@pytest.mark.parametrize(
    ("says", "exit_code", "problem"),
    [
        ("route_pipeline, grpc", 0, "has no route_pipeline, grpc: make the session by"),
        ("", 1, "cannot be started: make"),
    ],
)
def test_one_that_lacks_something_is_refused_in_a_line_that_says_what_to_set(
    tmp_path: Path, says: str, exit_code: int, problem: str
) -> None:
    with pytest.raises(WorkerPythonError, match=problem) as caught:
        check_worker_python(python(tmp_path, says, exit_code))
    assert "\n" not in str(caught.value)
    assert "os.environ['PYSPARK_PYTHON'] = sys.executable" in str(caught.value)


def test_one_that_is_not_there_is_named() -> None:
    with pytest.raises(WorkerPythonError, match="run 'no-such-python', which is not there"):
        check_worker_python("no-such-python")
