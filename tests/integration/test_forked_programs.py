"""Programs that the tests fork are programs as those that a shell starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.engines import require_native
from tests.support.programs.forked_programs import ForkedProgram
from tests.support.programs.processes import BIN, NamesrvProcess, ended, eventually

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


@pytest.mark.parametrize(
    "arguments", [["--help"], ["status", "--namesrv", "127.0.0.1:1"]], ids=["help", "nobody there"]
)
def test_a_forked_program_writes_to_both_outputs_what_a_started_one_does(tmp_path: Path, arguments: list[str]) -> None:
    command, environment = [str(BIN / "nsctl"), *arguments], {**os.environ, "HOME": str(tmp_path)}
    there = ended(command, environment, str(tmp_path))
    run = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (there.returncode, there.stdout, there.stderr) == (run.returncode, run.stdout, run.stderr)
    assert there.stdout or there.stderr


def test_a_forked_program_that_does_not_end_is_killed_as_a_started_one_is() -> None:
    require_native()
    for patience in (3.0, 30.0):  # a busy machine may need the longer one for the start
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            ended([NAMESRV, "serve", "--listen", "127.0.0.1:0", "--log-format", "json"], within_seconds=patience)
        if '"namesrv_started"' in str(caught.value.stderr):
            break
    assert '"namesrv_started"' in str(caught.value.stderr)


def test_a_forked_program_has_nothing_of_the_process_that_forked_it() -> None:
    with NamesrvProcess() as others, NamesrvProcess() as process:
        folder = Path("/proc") / str(process.pid)
        assert (folder / "fd" / "0").readlink() == Path(os.devnull)
        assert (folder / "cwd").readlink() == Path.cwd()
        # A pidfd or a socket of the process that forks would be one more than in the one that was forked before it, and
        # stay so; a file that either has open for a moment does not.
        eventually(
            lambda: [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (others.pid, process.pid)],
            lambda counts: counts[0] == counts[1],
        )


def test_a_signal_to_a_forked_program_whose_end_is_not_told_yet_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    program = ForkedProgram([NAMESRV, "serve", "--no-such-flag"], os.environ)
    with program.stderr:
        code = program.wait(60)
    monkeypatch.setattr(program, "poll", lambda: None)  # the moment between its end and the word of it
    program.terminate()
    assert (code, program.returncode) == (2, 2)


def test_the_signal_that_ends_a_forked_program_is_its_exit_code() -> None:
    with NamesrvProcess() as process:
        process.signal(signal.SIGSTOP)
        process.kill()
        assert process.terminate() == -signal.SIGKILL
