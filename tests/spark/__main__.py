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
import venv
from pathlib import Path

from deploy.release.engine import REPOSITORY, run
from tests.support import cache_folder as caches

PYSPARK = "4.2.0"
TESTS = ("tests/integration/pipeline/test_spark.py", "tests/spark/test_places.py")
TEST_SECONDS = 1200
"""For one test: a job that is broken off in the middle would leave the session of all others useless."""
INSTALL_SECONDS = 600
CACHE = "namesrv-spark"
PARTS = "namesrv,spark,spark-connect"
"""The name server comes along, because tests read from one."""
TEST_TOOLS = (
    *("pytest", "pytest-timeout", "pytest-xdist", "anyio>=4.12", "cryptography", "hypothesis"),
    *("duckdb-extension-delta", "boto3"),
)


def main(arguments: list[str]) -> int:
    """Runs it; returns the highest of pytest's exit codes."""
    with tempfile.TemporaryDirectory(prefix="namesrv-spark-") as folder:
        programs = environment(PYSPARK, build_wheel(Path(folder)))
        # Away from the repository, whose packages would be found before those of the wheel.
        away = Path(folder) / "away"
        for name in ("tests", "examples", "deploy"):  # deploy/spark has the maker of Java homes
            ignored = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(REPOSITORY / name, away / name, ignore=ignored)
        shutil.copy(REPOSITORY / "pyproject.toml", away)
        variables = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        variables.pop("PYTHONPATH", None)
        pytest: list[str | Path] = [programs / "python", "-m", "pytest", "-q", f"--timeout={TEST_SECONDS}"]
        # Java starts once a process, and each of these wants another one.
        runs = [[test] for test in arguments or TESTS]
        return max(subprocess.run([*pytest, *run], cwd=away, env=variables, check=False).returncode for run in runs)


def build_wheel(folder: Path) -> Path:
    """Builds the wheel of the repository as it is."""
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, REPOSITORY)
    (wheel,) = folder.glob("namesrv-*.whl")
    return wheel


@caches.one_at_a_time(CACHE)
def environment(pyspark: str, wheel: Path) -> Path:
    """An environment with a release of PySpark, such as 4.2.0, and the wheel; returns its folder of programs."""
    folder = caches.cache_folder(CACHE) / f"pyspark-{pyspark}"
    done = folder / "done"
    if not done.exists():
        venv.create(folder, clear=True, with_pip=True)
    pip: list[str | Path] = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, f"pyspark=={pyspark}", f"namesrv[{PARTS}] @ {wheel.as_uri()}", *TEST_TOOLS)
    # Wheels of these versions were perhaps installed before. Tests need the native engine, which `make engine` builds.
    _run(*pip, "--force-reinstall", "--no-deps", wheel, *(REPOSITORY / "engine/target/wheels").glob("*.whl"))
    done.touch()
    return folder / "bin"


def _run(*command: str | Path) -> None:
    run(list(map(str, command)), folder=str(caches.cache_folder(CACHE)), timeout=INSTALL_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
