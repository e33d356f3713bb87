"""Rules for all tests."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

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

# Coverage starts with an interpreter.
Process.are_forked = not MEASURED


# A wrapper, because pytest-xdist reads the groups in a hook that comes before all others.
@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """What one worker runs where `--dist loadgroup` asks: a module, or a folder whose modules share what is built."""
    root = Path(__file__).parent
    for item in items:
        module = item.path.relative_to(root)
        group = module.parts[0] if module.parts[0] in {"interop", "rocketmq"} else str(module)
        item.add_marker(pytest.mark.xdist_group(group))
    yield
