"""The Python programs of the README and of docs/operating.md do what these say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages import code_blocks
from support.programs.processes import BrokerAgentProcess, NamesrvProcess, eventually

ADDRESS = "127.0.0.1:9876"
"""Where the README's name server is."""
MASTER, SLAVE = "127.0.0.1:10911", "127.0.0.1:11011"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[NamesrvProcess]:
    """A name server that keeps what it is told, with the master and the slave of the demo."""
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
    """Runs a program of the README beside a name server of ours; returns what it prints."""
    assert ADDRESS in program
    command = [sys.executable, "-W", "error", "-c", program.replace(ADDRESS, str(namesrv.endpoint))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def masked(text: str) -> str:
    """The text without what differs each time: times and a client's port."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    return re.sub(r"ipv4:127\.0\.0\.1:\d+", "CALLER", text)


def test_the_first_program_prints_the_queues_and_the_brokers_of_a_topic(fleet: NamesrvProcess) -> None:
    (asking,) = code_blocks("README.md", "python")
    assert run(asking, fleet) == f"broker-a 4 4\nbroker-a [(0, '{MASTER}'), (1, '{SLAVE}')]\n"


def test_the_operators_program_prints_what_its_page_shows(fleet: NamesrvProcess) -> None:
    (operating,) = code_blocks("docs/operating.md", "python")
    shown = code_blocks("docs/operating.md", "text")[-1]
    assert masked(run(operating, fleet)) == masked(shown)
