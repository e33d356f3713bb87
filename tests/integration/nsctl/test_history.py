"""``nsctl history`` as log shippers run it: lines of JSON in a pipe, across restarts of the name server."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb

from tests.support.programs.agents import held_port
from tests.support.programs.processes import BIN, NamesrvProcess, ended, eventually


class Follower:
    """A running ``nsctl history --follow``, and what it has written so far."""

    def __init__(self, namesrv: str, *flags: str) -> None:
        # A shell has its background jobs ignore SIGINT, and the program would inherit that from the tests.
        interruptible = ["env", "--default-signal=INT"]
        command = [*interruptible, str(BIN / "nsctl"), "history", "--follow", *flags, "--namesrv", namesrv]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.notes: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.notes))
        ]
        for reader in self._readers:
            reader.start()

    def keys(self) -> list[str]:
        """The keys whose change it has shown, in its order."""
        entries: list[dict[str, Any]] = [json.loads(line) for line in list(self.lines)]
        return [entry["comment"] or entry["summary"].split("'")[3] for entry in entries]

    def interrupt(self) -> int:
        """Sends what Ctrl-C sends; returns the exit code once all that it said is here."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(20)
        for reader in self._readers:
            reader.join(5)
        return code

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line)  # noqa: PERF402 - readers look at it meanwhile


@contextmanager
def following(namesrv: str, *flags: str) -> Iterator[Follower]:
    follower = Follower(namesrv, *flags)
    try:
        yield follower
    finally:
        follower.process.kill()
        follower.wait()
        for stream in (follower.process.stdout, follower.process.stderr):
            assert stream is not None
            stream.close()


def put(namesrv: NamesrvProcess, *keys: str) -> None:
    with namesrv.connect() as client:
        for key in keys:
            client.admin.PutKvConfig(pb.PutKvConfigRequest(namespace="ns", key=key, value="v"), timeout=client.TIMEOUT)


@pytest.mark.timeout(120)
def test_lines_come_at_once_and_go_on_after_restarts_without_gap(tmp_path: Path) -> None:
    with held_port() as port:
        flags = ("--data-dir", str(tmp_path))
        with NamesrvProcess(*flags, port=port) as namesrv, following(f"127.0.0.1:{port}", "--json") as follower:
            put(namesrv, "a")
            eventually(follower.keys, lambda found: found == ["a"])
            put(namesrv, "b")  # whether it was seen before the end or not, it is shown
            assert namesrv.terminate() == 0
            eventually(lambda: follower.notes)
            with NamesrvProcess(*flags, port=port) as again:
                put(again, "c")
                eventually(follower.keys, lambda found: found == ["a", "b", "c"])
                epochs = [json.loads(line)["epoch"] for line in follower.lines]
                assert epochs[0] == epochs[1] < epochs[2]
                assert follower.interrupt() == 0
                shown = ended([str(BIN / "nsctl"), "history", "-o", "json", "-n", f"127.0.0.1:{port}"]).stdout
                assert [entry["epoch"] for entry in json.loads(shown)] == epochs[::-1]
    refused, back = follower.notes
    assert f"127.0.0.1:{port}: UNAVAILABLE" in refused
    assert f"127.0.0.1:{port} answers again" in back


def test_a_reader_that_goes_away_ends_it_without_a_traceback(tmp_path: Path) -> None:
    with NamesrvProcess("--data-dir", str(tmp_path)) as namesrv:
        put(namesrv, "a")
        command = [str(BIN / "nsctl"), "history", "--follow", "--json", "-n", str(namesrv.endpoint)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert "'a'" in process.stdout.readline()
        process.stdout.close()
        put(namesrv, "b")
        assert process.stderr is not None
        with process.stderr:
            assert process.stderr.read() == ""
        assert process.wait(20) == 1
