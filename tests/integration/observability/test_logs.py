"""Logs of JSON are objects on standard error. SIGHUP has files read again."""

from __future__ import annotations

import json
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from namesrv_common.endpoints import Endpoint
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent
from tests.support.programs.processes import BIN, NamesrvProcess, Process, ended, eventually
from tests.support.registrations import register
from tests.support.secured.certificates import Authority

NAMESRV, AGENT, PIPELINE = str(BIN / "namesrv"), str(BIN / "broker-agent"), str(BIN / "route-pipeline")
BROKER = ("--broker-name=broker-a", "--broker-id=0", "--broker-addr=127.0.0.1:10911", "--namesrv=a:1")
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of the lines of a text, in which there is nothing else."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(each, dict) and {"event", "level", "timestamp"} <= each.keys() for each in found), text
    return found


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ([NAMESRV, "serve", "--data-dir=/dev/null/x"], {"NAMESRV_LOG_FORMAT": "json"}),
        ([NAMESRV, "serve", "--data-dir=/dev/null/x", "--log-format=json"], {"NAMESRV_LOG_FORMAT": "text"}),
        ([NAMESRV, "serve", "--config"], {}),
        ([AGENT, "serve", *BROKER, "--topics=/nowhere", "--log-format=json"], {}),
        ([PIPELINE, "ingest", "--namesrv=a", "--out=x", "--log-format=json"], {}),
    ],
)
def test_json_is_asked_for_by_flag_variable_and_file(
    command: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "it.toml").write_text('log_format = "json"\ndata_dir = "/dev/null/x"\n')
    file = [str(tmp_path / "it.toml")] if command[-1] == "--config" else []
    done = ended([*command, *file], variables)
    (line,) = objects(done.stderr)
    assert (line["level"], line["program"], done.returncode) == ("error", Path(command[0]).name, 2)
    assert line["event"] == ("failed" if command[0] == PIPELINE else "cannot_start")


TROUBLE = """
import asyncio, logging, sys, threading, warnings
from namesrv_common.process.logs import configure_logs

def fail(where):
    raise RuntimeError(f"trouble in {where}")

class Unraisable:
    def __del__(self):
        fail("a finalizer")

async def fail_in_a_task():
    fail("a task")

async def run():
    loop = asyncio.get_running_loop()
    loop.call_soon(fail, "a callback")
    loop.create_task(fail_in_a_task())
    await asyncio.sleep(0.01)

configure_logs("json", "info")
for work in (sys.exit, lambda: fail("a thread")):
    (thread := threading.Thread(target=work)).start()
    thread.join()
warnings.warn("trouble in a call", RuntimeWarning)
Unraisable()
logging.getLogger("trouble number one").error("%d", "two")
asyncio.run(run())
raise ValueError("two\\nlines")
"""
"""Everything goes wrong in it that Python reports."""


def test_whatever_goes_wrong_in_a_program_is_told_in_objects() -> None:
    done = ended([sys.executable, "-c", TROUBLE])
    of_thread, *others, of_program = objects(done.stderr)
    assert (done.returncode, of_thread["event"], of_program["event"]) == (1, *["uncaught_exception"] * 2)
    assert of_thread["exception"].endswith("RuntimeError: trouble in a thread")
    assert of_program["exception"].endswith("ValueError: two\nlines")
    for each, line in zip(("in a call", "in a finalizer", "number", "in a callback", "in a task"), others, strict=True):
        assert f"trouble {each}" in str(line)


def hang_up(process: Process) -> None:
    """Sends SIGHUP and waits until the program has logged the request."""
    seen = len(process.events("reload_requested"))
    process.signal(signal.SIGHUP)
    eventually(lambda: process.events("reload_requested"), lambda found: len(found) > seen)


def send(listen: Endpoint, said: bytes) -> None:
    """Says something to a listener; whatever the answer is has come when it returns."""
    with socket.create_connection(listen, timeout=TIMEOUT) as peer, suppress(OSError):
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65_536):
            pass


def test_programs_log_objects_reload_at_a_hangup_and_stop_at_sigterm(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign_server()
    permits = tmp_path / "permits.toml"
    permits.write_text('[principals.reader]\ncertificates = ["reader"]\nlook_up = true\n')
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with (
        NamesrvProcess(*tls, "--permits-file", str(permits)) as namesrv,
        Agent(str(namesrv.endpoint), *tls) as agent,
    ):
        agent.wait_for("agent_started")
        for program, listen in ((namesrv, namesrv.endpoint), (agent, agent.ordinary)):
            # Every mistake with TLS; the last peer goes without a word.
            for said in (
                b"GET / HTTP/1.1\r\n\r\n",
                b"\x16\x03\x01\0\x05hello",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"",
            ):
                send(listen, said)
            hang_up(program)
            eventually(partial(program.events, "tls_reloaded"))
        eventually(lambda: namesrv.events("permits_reloaded"))
        hang_up(agent)
        assert (agent.terminate(), namesrv.terminate()) == (0, 0)
        for program in (namesrv, agent):
            objects(program.raw)


LOGGING_HANDLER = """
import signal
import structlog
from namesrv_common.process.logs import configure_logs

configure_logs("json", "info")
log = structlog.get_logger()
signal.signal(signal.SIGALRM, lambda *_: log.info("signal_handled"))
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
for number in range(8_000):
    log.info("line", number=number)
signal.setitimer(signal.ITIMER_REAL, 0)
"""
"""Handles thousands of signals, as a program handles SIGHUP, while it logs."""


def test_a_signal_that_interrupts_a_log_line_blocks_nothing() -> None:
    done = ended([sys.executable, "-c", LOGGING_HANDLER])
    assert done.returncode == 0
    assert '"signal_handled"' in done.stderr


def test_a_pipeline_appends_further_batches_after_a_hangup(tmp_path: Path) -> None:
    with NamesrvProcess() as namesrv, namesrv.connect() as client:
        register(client, "orders")
        command = [str(BIN / "route-pipeline"), "follow", "--namesrv", str(namesrv.endpoint), "--every", "1"]
        with Process([*command, "--out", str(tmp_path / "log"), "--log-format", "json"]) as pipeline:

            def said(words: str, times: int = 1) -> None:
                eventually(
                    lambda: [line for line in pipeline.events("progress") if words in line["text"]],
                    lambda found: len(found) >= times,
                    within_seconds=120,
                )

            said("snapshot")
            pipeline.signal(signal.SIGHUP)
            register(client, "orders", "payments", counter=2)
            said("changes,")
