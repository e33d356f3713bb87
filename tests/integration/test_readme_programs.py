"""The quickstart and the programs of the README and of docs/operating.md print what the pages show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages import ROOT, code_blocks
from support.programs.agents import held_port
from support.programs.processes import BIN, BrokerAgentProcess, NamesrvProcess, eventually

ADDRESS = "127.0.0.1:9876"
"""Where the README's name server is."""
MASTER, SLAVE = "127.0.0.1:10911", "127.0.0.1:11011"
INSTALLATION = "$ make install\n$ . .venv/bin/activate\n"
STARTED = "until nsctl route TopicTest >/dev/null 2>&1; do sleep 0.1; done"
"""A reader waits a second or two before the first question."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[NamesrvProcess]:
    """A name server with a data directory, and the master and the slave of the demo."""
    with (
        NamesrvProcess("--data-dir", str(tmp_path)) as namesrv,
        BrokerAgentProcess(str(namesrv.endpoint), broker_addr=MASTER) as master,
        namesrv.connect() as client,
    ):
        master.wait_for("agent_started")
        eventually(client.addrs, lambda found: found == {0: MASTER})
        with BrokerAgentProcess(str(namesrv.endpoint), broker_id=1, broker_addr=SLAVE) as slave:
            slave.wait_for("agent_started")
            eventually(client.addrs, lambda found: found == {0: MASTER, 1: SLAVE})
            yield namesrv


def run(program: str, namesrv: NamesrvProcess) -> str:
    """Runs a program of a page against the given name server; returns its output."""
    assert ADDRESS in program
    command = [sys.executable, "-W", "error", "-c", program.replace(ADDRESS, str(namesrv.endpoint))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def masked(text: str) -> str:
    """The text without times, ports of clients and layout."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    text = re.sub(r"ipv4:127\.0\.0\.1:\d+", "CALLER", text)
    return " ".join(re.sub("─+", " ", text).split())


def commands_and_output(block: str) -> tuple[list[str], str]:
    """The commands of a console block, which follow the prompt, and what it shows that they print."""
    block = block.replace("\\\n", "")
    commands = re.findall(r"^\$ (.+)$", block, re.MULTILINE)
    return commands, re.sub(r"^\$ .+\n", "", block, flags=re.MULTILINE)


def test_quickstart_commands_print_what_the_readme_shows(tmp_path: Path) -> None:
    installing, starting, asking, *rest = code_blocks("README.md", "console", section="Quickstart")
    assert installing == INSTALLATION
    commands, shown = [*commands_and_output(starting)[0], "export NAMESRV_ADDR=" + ADDRESS, STARTED], ""
    for block in (asking, *rest):
        more, output = commands_and_output(block)
        commands += more
        shown += output
    assert commands[-1] == "kill %1"
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    script = "\n".join(["set -m", *commands[:2], "jobs -p > pids", *commands[2:], "wait %1"])
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "COLUMNS": "118",
            "NAMESRV_LISTEN": address,
            "BROKER_AGENT_LISTEN": "127.0.0.1:0",
            "BROKER_AGENT_FAST_LISTEN": "127.0.0.1:0",
        }
        try:
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-c", script.replace(ADDRESS, address)],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            for pid in (tmp_path / "pids").read_text().split():
                end(int(pid))
    printed = re.sub(r"^(bash: line|\[1\]).+\n", "", done.stdout, flags=re.MULTILINE)  # of the shell, about the two jobs
    assert masked(printed) == masked(shown).replace(ADDRESS, address)
    assert done.returncode == 0, (tmp_path / "namesrv.log").read_text()
    assert any((tmp_path / "data").iterdir()), "a snapshot"


def end(pid: int) -> None:
    """Kills a process of the quickstart that a failed test has left."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_readme_program_prints_the_queues_of_a_topic(fleet: NamesrvProcess) -> None:
    (asking,) = code_blocks("README.md", "python")
    assert run(asking, fleet) == "broker-a 4 4\n"


def test_operating_program_prints_what_its_page_shows(fleet: NamesrvProcess) -> None:
    (operating,) = code_blocks("docs/operating.md", "python")
    shown = code_blocks("docs/operating.md", "text")[-1]
    assert masked(run(operating, fleet)) == masked(shown)
