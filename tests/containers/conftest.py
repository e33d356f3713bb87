from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from namesrv_common.version import __version__
from release.engine import REPOSITORY, CommandError, Engine, NoEngineError, open_engine, run
from release.engine_wheel import NoCargoError, engine_wheels
from release.images import build_offline, tool

SECONDS = 90.0
"""Time for systemd, or a service of ours, to come to a state on a busy machine."""


@pytest.fixture(scope="session")
def empty_engine() -> Iterator[Engine]:
    """An engine without any image. Where there can be none, every test that asks for it is skipped."""
    try:
        with open_engine() as opened:
            yield opened
    except NoEngineError as error:
        pytest.skip(f"no container engine: {error}")


@pytest.fixture(scope="session")
def engine(empty_engine: Engine) -> Engine:
    """An engine that holds both images. Where they cannot be made, every test that asks for it is skipped."""
    try:
        build_offline(empty_engine)
    except (NoEngineError, NoCargoError) as error:
        pytest.skip(f"no images: {error}")
    return empty_engine


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder of the programs that check files."""
    try:
        return tool("python").parent
    except NoEngineError as error:
        pytest.skip(str(error))


def gather_wheels(folder: Path, python: str, extras: str) -> None:
    """Puts the wheels of a release into a folder, and all that they need, as docs/install.md gathers them.

    They are for the version of an interpreter. Raises NoEngineError, if there is no package index, and WheelError.
    """
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run([*pip, "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}", str(REPOSITORY)], timeout=300)
    ours = folder / f"namesrv-{__version__}-py3-none-any.whl"
    engine = engine_wheels()[0]
    version = run([python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"])
    download = [*pip, "download", "--quiet", "--only-binary=:all:", f"--python-version={version}", f"--dest={folder}"]
    try:
        run([*download, f"{ours}[{extras}]", str(engine)], timeout=300)
    except CommandError as error:
        raise NoEngineError(f"what the programs need cannot be downloaded: {error}") from error
