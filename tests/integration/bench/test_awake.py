"""Processors are kept awake by processes that are in nobody's way, and that end when the measurement does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from bench.awake import processors_awake
from tests.support.programs.processes import eventually

MEASURES = """
import signal
from bench.awake import processors_awake
with processors_awake() as busy:
    print(*busy, flush=True)
    signal.pause()
"""


def test_each_processor_has_one_that_everything_else_interrupts_until_the_end() -> None:
    with processors_awake() as busy:
        eventually(lambda: {os.sched_getscheduler(pid) for pid in busy}, {os.SCHED_IDLE}.__eq__)
        places = [os.sched_getaffinity(pid) for pid in busy]
        assert places == [{processor} for processor in sorted(os.sched_getaffinity(0))]
    # On a loaded machine a killed process may wait for its processor.
    eventually(lambda: all(_ended(pid) for pid in busy))


def test_they_end_with_a_measurement_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", MEASURES], stdout=subprocess.PIPE, text=True) as measures:
        assert measures.stdout is not None
        busy = [int(pid) for pid in measures.stdout.readline().split()]
        eventually(lambda: {os.sched_getscheduler(pid) for pid in busy}, {os.SCHED_IDLE}.__eq__)
        measures.send_signal(signal.SIGKILL)
    # Whose children they become then may not have taken their exit codes yet.
    eventually(lambda: all(_ended(pid) for pid in busy))


def test_one_whose_measurement_was_killed_before_it_began_ends_at_once() -> None:
    processor, nobody = min(os.sched_getaffinity(0)), 0
    done = subprocess.run([sys.executable, "-m", "bench.awake", str(processor), str(nobody)], timeout=60, check=False)
    assert done.returncode == 0


def _ended(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
