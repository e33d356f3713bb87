"""Builds the native engine's wheel into dist/, with a manylinux tag that is checked.

    python -m deploy.release.engine_wheel

Zig links it against the C library of 2014, so that it runs on every Linux since; maturin fails where a symbol or a
library would make the tag a lie. Needs cargo 1.85 or later; what else it takes comes from the package index.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from namesrv_common.version import __version__

REPOSITORY = Path(__file__).parents[2]
ENGINE = REPOSITORY / "engine"
DIST = REPOSITORY / "dist"
TOOLS = ("maturin==1.16.0", "ziglang==0.17.1")
LINUX = ("--zig", "--compatibility=manylinux_2_17", "--auditwheel=check")
BUILD_SECONDS = 1_200
"""On a busy machine; on two free cores it takes one minute, and a second where nothing has changed."""


class WheelError(Exception):
    """The wheel could not be built."""


class NoCargoError(WheelError):
    """There is neither cargo nor a wheel; the text says what to do."""


def engine_wheel(folder: Path = DIST) -> Path:
    """Builds the wheel into a folder, removes others of the engine there, and returns its path.

    Where there is no cargo, the one of this version that is in the folder already is as good.

    Raises:
        NoCargoError: There is neither cargo nor such a wheel.
        WheelError: The build has failed, or there is no package index.
    """
    if subprocess.run(["sh", ENGINE / "cargo.sh"], check=False).returncode != 0:
        if there := sorted(folder.glob(f"namesrv_engine-{__version__}-*.whl")):
            return there[0]
        raise NoCargoError(
            "the native engine's wheel takes cargo 1.85 or later (https://rustup.rs); "
            "or copy a wheel of this version, which make wheel has built elsewhere, to dist/"
        )
    folder.mkdir(exist_ok=True)
    try:
        programs = _tools()
        # One build at a time: two would take the library from each other in engine/target.
        # The wheel is replaced in one step: the build of an image may copy the last one at that time.
        with (ENGINE / "Cargo.toml").open() as lock, tempfile.TemporaryDirectory(dir=folder) as built:
            fcntl.flock(lock, fcntl.LOCK_EX)  # its holder ends after BUILD_SECONDS
            options = ["--release", "--locked", f"--out={built}", *(LINUX if sys.platform == "linux" else ())]
            _run([programs / "maturin", "build", *options], {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"})
            (new,) = Path(built).glob("namesrv_engine-*.whl")
            wheel = new.replace(folder / new.name)
    except subprocess.SubprocessError as error:
        raise WheelError(f"the native engine's wheel could not be built: {error}") from error
    for old in set(folder.glob("namesrv_engine-*.whl")) - {wheel}:
        old.unlink()
    return wheel


def _tools() -> Path:
    """The folder of the programs that build, in an environment that is made when first asked for."""
    digest = hashlib.sha256(" ".join((sys.version, *TOOLS)).encode()).hexdigest()[:12]
    environment = REPOSITORY / "build" / f"engine-tools-{digest}"
    if not (environment / "done").exists():
        venv.create(environment, clear=True, with_pip=True)
        _run([environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS])
        (environment / "done").touch()
    return environment / "bin"


def _run(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    """Runs a command in the engine's folder. What it prints goes to standard error. Raises SubprocessError."""
    more = {**os.environ, **(environment or {})}
    subprocess.run(list(map(str, command)), cwd=ENGINE, env=more, check=True, stdout=sys.stderr, timeout=BUILD_SECONDS)


def main() -> int:
    """Runs the program; returns its exit code."""
    try:
        wheel = engine_wheel()
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{wheel.relative_to(REPOSITORY)}: {wheel.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
