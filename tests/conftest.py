"""Rules for all tests."""

from __future__ import annotations

import asyncio
import faulthandler
import os
from typing import Any

import pytest
from hypothesis import settings

from namesrv.core import pace
from tests.properties import SEED, seed_test
from tests.support.patience import FACTOR
from tests.support.programs.processes import MEASURED, Process
from tests.support.promised_errors import fail_where_others_are_sent

settings.load_profile("ci" if os.environ.get("CI") else "fixed")

SHARED = (
    # Programs in Go and Rust: a worker compiles them once.
    (
        "tests/interop/test_foreign_",
        "tests/interop/test_watching_programs.py",
        "tests/interop/test_service_config.py",
    ),
    ("tests/rocketmq/test_demo.py",),
    ("tests/rocketmq/",),
    ("tests/containers/test_fleet.py", "tests/containers/test_images.py"),
    # They share a Java with Spark.
    ("tests/integration/pipeline/",),
)
"""Modules, by how their paths begin, that share what is built and started; the first group that fits is a module's."""

LONG = (
    "tests/faults/files/",
    "tests/faults/test_attacks.py",
    "tests/faults/test_runs.py",
    "tests/integration/agent/",
    "tests/integration/console/",
    "tests/integration/pipeline/",
    "tests/interop/test_foreign_",
    "tests/rocketmq/test_demo.py",
    "tests/unit/namesrv/core/test_against",
)
"""Groups that would continue alone at the end if they were not begun first."""

# A thread that touches what belongs to the event loop fails.
pace.is_ownership_checked = True

# A call that sends an error which its comment does not promise fails its test.
fail_where_others_are_sent()

# Coverage starts with an interpreter.
Process.are_forked = not MEASURED

STANDARD_ERROR = pytest.StashKey[int]()
"""What standard error is while pytest captures that of a test."""

GRACE_SECONDS = 60.0
"""How long the signal of pytest-timeout has to end a test."""


MOST_TIMES = 3.0
"""How many times as long a test may take on a slow machine: one that hangs must end before the run of CI does."""


def pytest_configure(config: pytest.Config) -> None:
    """Keeps standard error."""
    config.stash[STANDARD_ERROR] = os.dup(2)


def pytest_report_header() -> list[str]:
    """Prints how patient tests are, and the seed of the properties where they draw new examples."""
    lines = [f"time-outs are multiplied by TEST_PATIENCE={FACTOR}"]
    if settings.get_current_profile_name() == "ci":
        lines.append(f"properties have the seed TEST_SEED={SEED}")
    return lines


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Has the examples of a property depend on the seed of the run and the name of the test alone."""
    seed_test(item.nodeid)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Ends a worker whose test no signal can end, since it waits outside of Python; its stacks say where."""
    later = settings.timeout + GRACE_SECONDS
    faulthandler.dump_traceback_later(later, exit=True, file=item.config.stash[STANDARD_ERROR])


def pytest_timeout_cancel_timer() -> None:
    """Lets a test that has ended go."""
    faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts what takes longest first: workers take groups of tests in this order. A busy machine gives all more time."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0] if marker else config.getoption("timeout") or config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(seconds * min(FACTOR, MOST_TIMES)), append=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What one worker runs where `--dist loadgroup` asks: a module, or all those that share what is built.

    xdist's own groups are marks that it writes into names of tests, which pytest 9.2 does not let it change.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # noqa: PLC0415 - not everywhere where tests run one by one

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return next((shared[0] for shared in SHARED if module.startswith(shared)), module)

    return Groups(config, log)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop of a test. gRPC also tries to wake loops of tests that have ended."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if str(context.get("exception")) != "Event loop is closed":
            super().call_exception_handler(context)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """What runs tests that are coroutines."""
    return "asyncio", {"loop_factory": _Loop}
