"""How many descriptors connections may take."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from groundwork.program import FOR_OTHERS, MOST, without_others

RAISES = (
    "import resource; from groundwork.program import use_all_descriptors, descriptors_for_connections;"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1_000)); use_all_descriptors();"
    "print(*resource.getrlimit(resource.RLIMIT_NOFILE), descriptors_for_connections())"
)


@pytest.mark.parametrize(
    ("limit", "left"),
    [(65_536, 65_536 - FOR_OTHERS), (1_024, 768), (400, 300), (resource.RLIM_INFINITY, MOST - FOR_OTHERS)],
)
def test_some_are_for_others_than_connections(limit: int, left: int) -> None:
    assert without_others(limit) == left


def test_a_process_uses_all_that_it_may_have() -> None:
    told = subprocess.run([sys.executable, "-c", RAISES], capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.split() == ["1000", "1000", "750"]
