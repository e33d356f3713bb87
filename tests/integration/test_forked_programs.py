"""Programs that the tests fork are programs as those that a shell starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.programs.forked_programs import ForkedProgram
from support.programs.processes import BIN, NamesrvProcess

NAMESRV = str(BIN / "namesrv")


def started(arguments: list[str]) -> tuple[int, str]:
    """Exit code and error text of a program that a shell starts."""
    run = subprocess.run(arguments, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    return run.returncode, run.stderr


def forked(arguments: list[str]) -> tuple[int, str]:
    """Exit code and error text of the same program, forked."""
    program = ForkedProgram(arguments, os.environ)
    with program.stderr:
        return program.wait(60), program.stderr.read()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([NAMESRV, "serve", "--listen", "nowhere"], id="a setting that is wrong"),
        pytest.param([NAMESRV, "serve", "--no-such-flag"], id="a flag that does not exist"),
        pytest.param([str(BIN / "broker-agent"), "serve"], id="a setting that is missing"),
    ],
)
def test_a_forked_program_fails_as_a_started_one(arguments: list[str]) -> None:
    code, text = forked(arguments)
    assert (code, text) == started(arguments)
    assert code == 2
    assert text


def test_a_forked_program_has_nothing_of_the_process_that_forked_it() -> None:
    with NamesrvProcess() as others, NamesrvProcess() as process:
        folder = Path("/proc") / str(process.pid)
        assert (folder / "fd" / "0").readlink() == Path(os.devnull)
        assert (folder / "cwd").readlink() == Path.cwd()
        # A pidfd or a socket of the process that forks would be one more than in the one that was forked before it.
        before, now = (len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (others.pid, process.pid))
        assert before == now


def test_the_signal_that_ends_a_forked_program_is_its_exit_code() -> None:
    with NamesrvProcess() as process:
        process.signal(signal.SIGSTOP)
        process.kill()
        assert process.terminate() == -signal.SIGKILL
