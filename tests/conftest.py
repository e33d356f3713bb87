"""Rules for all tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from support.programs.processes import MEASURED, Process
from tests.properties import MORE

# A deadline would be a timed assertion: a busy machine fails it. Whether a change passes must not depend on luck
# either, so each property has a fixed seed, made of its code.
settings.register_profile("fixed", deadline=None, derandomize=True)
# What `make fuzz` takes: luck is tried there.
settings.register_profile("fuzz", deadline=None, derandomize=False, print_blob=True, max_examples=100 * MORE)
settings.load_profile("fixed")

SHARED = ("tests/interop", "tests/rocketmq")
"""Folders whose modules share what is built and started."""

# Coverage starts with an interpreter.
Process.are_forked = not MEASURED


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What one worker runs where `--dist loadgroup` asks: a module, or a folder whose modules share what is built.

    xdist's own groups are marks that it writes into names of tests, which pytest 9.2 does not let it change.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # noqa: PLC0415 - not everywhere where tests run one by one

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return next((shared for shared in SHARED if module.startswith(f"{shared}/")), module)

    return Groups(config, log)
