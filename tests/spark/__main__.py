"""Runs the pipeline's tests with PySpark 4.2 and Spark Connect, from a wheel in an environment of its own.

    python -m tests.spark

uv makes the environment, and keeps what it downloads, 0.5 GB of PySpark. Arguments are files of tests instead of all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release.engine import REPOSITORY

PYSPARK = "4.2.0"
TESTS = ("tests/integration/pipeline/test_spark.py", "tests/spark/test_places.py")
TEST_SECONDS = 1200
"""For one test: a job that is broken off in the middle would leave the session of all others useless."""
PARTS = "namesrv,spark,spark-connect"
"""The name server comes along, because tests read from one."""
TEST_TOOLS = (
    *("pytest", "pytest-timeout", "pytest-xdist", "anyio>=4.12", "cryptography", "hypothesis"),
    *("duckdb-extension-delta", "boto3"),
)


def main(arguments: list[str]) -> int:
    """Runs it; returns the highest of pytest's exit codes."""
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory(prefix="namesrv-spark-") as folder:
        # Away from the repository, whose packages would be found before those of the wheel.
        away = Path(folder) / "away"
        for name in ("tests", "examples", "release", "deploy"):  # deploy/spark has the maker of Java homes
            ignored = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(REPOSITORY / name, away / name, ignore=ignored)
        shutil.copy(REPOSITORY / "pyproject.toml", away)
        subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", folder, REPOSITORY], check=True)
        (wheel,) = Path(folder).glob("namesrv-*.whl")
        # Tests need the native engine, which `make engine` builds.
        engines = map(str, (REPOSITORY / "engine/target/wheels").glob("*.whl"))
        packages = (f"pyspark=={PYSPARK}", f"namesrv[{PARTS}] @ {wheel.as_uri()}", *engines, *TEST_TOOLS)
        python = [str(uv), "run", "--quiet", "--no-project", "--isolated", "--python", sys.executable]
        python += [word for package in packages for word in ("--with", package)]
        pytest = [*python, "python", "-m", "pytest", "-q", f"--timeout={TEST_SECONDS}"]
        variables = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        variables.pop("PYTHONPATH", None)
        # Java starts once a process, and each of these wants another one.
        runs = [[test] for test in arguments or TESTS]
        return max(subprocess.run([*pytest, *run], cwd=away, env=variables, check=False).returncode for run in runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
