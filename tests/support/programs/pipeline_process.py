"""The pipeline's program as a process group."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support.programs.processes import BIN

_END_SECONDS = 60.0


class PipelineProcess:
    """``route-pipeline`` in a process group of its own: Python, Java and Spark's workers are killed together."""

    def __init__(self, said: Path, *arguments: str) -> None:
        """Starts it; what it prints is added to a file."""
        with said.open("ab") as output:
            command = [str(BIN / "route-pipeline"), *arguments]
            self._popen = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # they have all ended
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(_END_SECONDS)
