"""SIGHUP makes a program read its certificates and other watched files again. The program continues."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.programs.agents import Agent
from tests.support.programs.processes import BIN, NamesrvProcess, Process, eventually
from tests.support.registrations import register
from tests.support.secured.certificates import Authority


def hang_up(process: Process) -> None:
    """Sends SIGHUP and waits until the program has logged the request."""
    seen = len(process.events("reload_requested"))
    process.signal(signal.SIGHUP)
    eventually(lambda: process.events("reload_requested"), lambda found: len(found) > seen)


def test_a_name_server_reloads_its_certificate_and_its_permits(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign_server()
    permits = tmp_path / "permits.toml"
    permits.write_text('[principals.reader]\ncertificates = ["reader"]\nlook_up = true\n')
    flags = ("--tls-cert", str(certificate), "--tls-key", str(key), "--permits-file", str(permits))
    with NamesrvProcess(*flags) as namesrv:
        hang_up(namesrv)
        eventually(lambda: namesrv.events("tls_reloaded") and namesrv.events("permits_reloaded"))
        assert namesrv.terminate() == 0


def test_an_agent_reloads_its_certificate_and_stops_on_sigterm(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign_server()
    with (
        NamesrvProcess() as namesrv,
        Agent(str(namesrv.endpoint), "--tls-cert", str(certificate), "--tls-key", str(key)) as agent,
    ):
        agent.wait_for("agent_started")
        hang_up(agent)
        eventually(lambda: agent.events("tls_reloaded"))
        hang_up(agent)
        assert agent.terminate() == 0


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
    ended = subprocess.run([sys.executable, "-c", LOGGING_HANDLER], stderr=subprocess.PIPE, timeout=60, check=False)
    assert ended.returncode == 0
    assert b'"signal_handled"' in ended.stderr


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
