"""Builds the native engine's wheel into dist/, with a manylinux or musllinux tag that is checked.

    python -m release.engine_wheel            # for this machine
    python -m release.engine_wheel --all      # for each processor and C library that cargo can compile for

Zig links it against the C library of 2014, so that it runs on every later Linux. maturin fails if a symbol or a library
contradicts the tag. Needs cargo 1.85 or later; the other tools come from the package index.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from namesrv_common.version import __version__
from release.engine import REPOSITORY

ENGINE = REPOSITORY / "engine"
DIST = REPOSITORY / "dist"
TOOLS = ("maturin==1.16.0", "ziglang==0.17.1")
LIBRARIES = {"gnu": "manylinux_2_17", "musl": "musllinux_1_2"}
"""C libraries that Rust names, each with the tag of a wheel that needs it: any Linux since 2014, Alpine since 3.13."""
TARGETS = tuple(f"{processor}-unknown-linux-{library}" for processor in ("x86_64", "aarch64") for library in LIBRARIES)
HOST = f"{platform.machine()}-unknown-linux-gnu"
BUILD_SECONDS = 2_400
"""On a busy machine; on two free cores it takes one minute, and a second where nothing has changed."""


class WheelError(Exception):
    """The wheel could not be built."""


class NoCargoError(WheelError):
    """There is neither cargo nor a wheel; the text says what to do."""


def engine_wheels(folder: Path = DIST, targets: Sequence[str] = (HOST,)) -> list[Path]:
    """Builds a wheel for each target into a folder, removes others of the engine there, and returns their paths.

    Where there is no cargo, those of this version that are in the folder already are as good.

    Raises:
        NoCargoError: There is neither cargo nor such a wheel.
        WheelError: A build has failed, or there is no package index.
    """
    if subprocess.run(["sh", ENGINE / "cargo.sh"], check=False).returncode != 0:
        if there := sorted(folder.glob(f"namesrv_engine-{__version__}-*{platform.machine()}.whl")):
            return there
        raise NoCargoError(
            "the native engine's wheel takes cargo 1.85 or later (https://rustup.rs); "
            "or copy a wheel of this version, which make wheel has built elsewhere, to dist/"
        )
    folder.mkdir(exist_ok=True)
    try:
        programs = tools(REPOSITORY / "build", *TOOLS)
        # One build at a time: two would take the library from each other in engine/target.
        with (ENGINE / "Cargo.toml").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # its holder ends after BUILD_SECONDS for each target
            wheels = [_build(programs, folder, target) for target in targets]
    except subprocess.SubprocessError as error:
        raise WheelError(f"the native engine's wheel could not be built: {error}") from error
    for old in set(folder.glob("namesrv_engine-*.whl")) - {*wheels}:
        old.unlink()
    return wheels


def possible_targets() -> list[str]:
    """The targets whose standard library this machine's Rust has, this machine's own first. Prints those left out."""
    found = [HOST]
    for target in TARGETS:
        command = ["rustc", "--print", "target-libdir", "--target", target]
        try:
            folder = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            folder = ""
        if target not in found and folder and Path(folder).exists():
            found.append(target)
        elif target not in found:
            print(f"left out: the engine's wheel for {target}, which takes rustup target add {target}")
    return found


def _build(programs: Path, folder: Path, target: str) -> Path:
    """Builds a wheel. It is replaced in one step: the build of an image may copy the last one at that time."""
    options = ["--release", "--locked"]
    if sys.platform == "linux":
        library = LIBRARIES[target.rpartition("-")[2]]
        options += ["--zig", f"--target={target}", f"--compatibility={library}", "--auditwheel=check"]
    with tempfile.TemporaryDirectory(dir=folder) as built:
        path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        _run([programs / "maturin", "build", *options, f"--out={built}"], path)
        (new,) = Path(built).glob("namesrv_engine-*.whl")
        return new.replace(folder / new.name)


def tools(folder: Path, *packages: str) -> Path:
    """The programs of an environment with pip and packages, made when first asked for. Raises SubprocessError."""
    digest = hashlib.sha256(" ".join((sys.version, *packages)).encode()).hexdigest()[:12]
    environment = folder / f"tools-{digest}"
    if not (environment / "done").exists():
        venv.create(environment, clear=True, with_pip=True)
        _run([environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages])
        (environment / "done").touch()
    return environment / "bin"


def _run(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    """Runs a command in the engine's folder. What it prints goes to standard error. Raises SubprocessError."""
    more = {**os.environ, **(environment or {})}
    subprocess.run(list(map(str, command)), cwd=ENGINE, env=more, check=True, stdout=sys.stderr, timeout=BUILD_SECONDS)


def main() -> int:
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(description="Builds the native engine's wheel into dist/.")
    parser.add_argument("--all", action="store_true", help="for each processor and C library that Rust can compile for")
    try:
        wheels = engine_wheels(targets=possible_targets() if parser.parse_args().all else [HOST])
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    for wheel in wheels:
        print(f"{wheel.relative_to(REPOSITORY)}: {wheel.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
