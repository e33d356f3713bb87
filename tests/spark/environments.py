"""Python environments as users make them: the wheel of this repository, and one release of PySpark."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.support import cache_folder as caches

REPOSITORY = Path(__file__).parents[2]
INSTALL_SECONDS = 600
CACHE = "namesrv-spark"
PARTS = "namesrv,spark,spark-connect"
"""The name server comes along, because tests read from one."""
TEST_TOOLS = (
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "cryptography",
    "hypothesis",
    "duckdb-extension-delta",
    "boto3",
    "polars",
)


def cache_folder() -> Path:
    """Where environments are kept from one run to the next: PySpark alone is 0.5 GB."""
    return caches.cache_folder(CACHE)


def build_wheel(folder: Path) -> Path:
    """Builds the wheel of the repository as it is."""
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, REPOSITORY])
    (wheel,) = folder.glob("namesrv-*.whl")
    return wheel


@caches.one_at_a_time(CACHE)
def environment(pyspark: str, wheel: Path) -> Path:
    """An environment with a release of PySpark, such as 4.2.0, and the wheel; returns its folder of programs."""
    folder = cache_folder() / f"pyspark-{pyspark}"
    done = folder / "done"
    if not done.exists():
        venv.create(folder, clear=True, with_pip=True)
    pip: list[str | Path] = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, f"pyspark=={pyspark}", f"namesrv[{PARTS}] @ {wheel.as_uri()}", *TEST_TOOLS])
    # A wheel of the same version was perhaps installed before.
    _run([*pip, "--force-reinstall", "--no-deps", wheel])
    done.touch()
    return folder / "bin"


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(
        command, cwd=cache_folder(), capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
