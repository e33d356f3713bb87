from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.release.engine import Engine, NoEngineError, open_engine
from deploy.release.engine_wheel import NoCargoError
from deploy.release.images import build_offline, tool
from tests.containers.fleet import ComposeFleet, running_fleet


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
    except NoEngineError as error:
        pytest.skip(f"no container engine: {error}")
    except NoCargoError as error:
        pytest.skip(f"no image of the name server: {error}")
    return empty_engine


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder of the programs that check files."""
    try:
        return tool("python").parent
    except NoEngineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def fleet(engine: Engine) -> Iterator[ComposeFleet]:
    """The fleet of compose.yaml. Its last test may stop it."""
    with running_fleet(engine) as running:
        yield running
