"""The pipeline's program as a process group."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support.programs.processes import BIN

_END_SECONDS = 60.0


class PipelineProcess:
    """``route-pipeline`` in a process group of its own: Python, Java and Spark's workers end together."""

    def __init__(self, said: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Starts it; what it prints is added to a file."""
        with said.open("ab") as output:
            self._popen = subprocess.Popen(
                [BIN / "route-pipeline", *arguments],
                start_new_session=True,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process group."""
        with suppress(ProcessLookupError):  # they have all ended
            os.killpg(self._popen.pid, number)

    def kill(self) -> None:
        """Kills the process group, as a crash would."""
        self.signal(signal.SIGKILL)
        self._popen.wait(_END_SECONDS)

    def wait(self, seconds: float) -> int:
        """Waits until the program has ended by itself; returns its exit code."""
        return self._popen.wait(seconds)
