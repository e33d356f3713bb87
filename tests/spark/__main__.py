"""Runs the pipeline's tests with PySpark 4.2 and Spark Connect, from a wheel in an environment of its own.

    python -m tests.spark

PySpark is downloaded once, 0.5 GB. Arguments are files of tests instead of all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.spark.environments import REPOSITORY, build_wheel, environment

PYSPARK = "4.2.0"
TESTS = ("tests/integration/pipeline/test_spark.py", "tests/spark/test_connect.py", "tests/spark/test_other_readers.py")
TEST_SECONDS = 1200
"""For one test: a job that is broken off in the middle would leave the session of all others useless."""


def main(arguments: list[str]) -> int:
    """Runs it; returns the highest of pytest's exit codes."""
    with tempfile.TemporaryDirectory(prefix="namesrv-spark-") as folder:
        programs = environment(PYSPARK, build_wheel(Path(folder)))
        # Away from the repository, whose packages would be found before those of the wheel.
        away = Path(folder) / "away"
        shutil.copytree(
            REPOSITORY / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__", "node_modules")
        )
        shutil.copytree(REPOSITORY / "examples", away / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", away)
        variables = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        variables.pop("PYTHONPATH", None)
        pytest: list[str | Path] = [programs / "python", "-m", "pytest", "-q", f"--timeout={TEST_SECONDS}"]
        # Java starts once a process, and each of these wants another one.
        runs = [[test] for test in arguments or TESTS]
        return max(subprocess.run([*pytest, *run], cwd=away, env=variables, check=False).returncode for run in runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
