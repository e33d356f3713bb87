"""A measurement ends on a loaded machine, too."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from bench import awake


class Starved:
    """A process that gets no time of its processor, and so does not end when it is killed."""

    def __init__(self, *_: object) -> None:
        self.pid = len(started)
        self.done: list[str] = []
        started.append(self)

    def kill(self) -> None:
        self.done.append("killed")

    def wait(self, timeout: float) -> int:
        raise subprocess.TimeoutExpired("bench.awake", timeout)


started: list[Starved] = []


def test_measurement_ends_though_a_busy_process_never_gets_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    started.clear()
    monkeypatch.setattr(subprocess, "Popen", Starved)

    def scheduled(pid: int, *_: Any) -> None:
        started[pid].done.append("scheduled like other processes")

    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(os, "sched_setscheduler", scheduled)
    with awake.processors_awake():
        pass
    assert started
    assert all(process.done == ["scheduled like other processes", "killed"] for process in started)
