"""Python environments as users make them: the wheel of this repository, and one release of PySpark."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
INSTALL_SECONDS = 600
PARTS = "namesrv,route-pipeline,spark-connect"
"""The name server comes along, because tests read from one."""
TEST_TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "cryptography", "hypothesis")


def cache_folder() -> Path:
    """Where environments are kept from one run to the next: PySpark alone is half a gigabyte."""
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(caches) / "namesrv-spark"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_wheel(folder: Path) -> Path:
    """Builds the wheel of the repository as it is."""
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, REPOSITORY])
    (wheel,) = folder.glob("namesrv-*.whl")
    return wheel


@_one_at_a_time()
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
