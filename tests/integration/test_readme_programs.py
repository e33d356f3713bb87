"""The quickstart, and the backup of the page for operators, do what the pages say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from namesrv_api.v1.admin_service_pb2 import GetKvConfigRequest, PutKvConfigRequest

from tests.support.pages import ROOT, code_blocks
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import held_port
from tests.support.programs.processes import BIN, NamesrvProcess

ADDRESS = "127.0.0.1:9876"
"""Where the README's name server is."""
INSTALLATION = "$ make install\n$ . .venv/bin/activate\n"
STARTED = "until nsctl route TopicTest >/dev/null 2>&1; do sleep 0.1; done"
"""A reader waits a second or two before the first question."""
LEFT = "while nsctl route TopicTest >/dev/null 2>&1; do sleep 0.1; done"


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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_quickstart_commands_print_what_the_readme_shows(tmp_path: Path) -> None:
    assert code_blocks("README.md", "console", section="Quickstart")[0] == INSTALLATION
    starting, asking, *rest = code_blocks("README.md", "console", section="Quickstart without RocketMQ")
    commands, shown = [*commands_and_output(starting)[0], "export NAMESRV_ADDR=" + ADDRESS, STARTED], ""
    for block in (asking, *rest):
        more, output = commands_and_output(block)
        commands += more
        shown += output
    commands.insert(commands.index("kill -9 %2") + 1, LEFT)
    assert commands[-1] == "kill %1"
    script = "\n".join(["set -m", *commands[:2], "jobs -p > pids", *commands[2:], "wait %1"])
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with held_port() as place:
            address = str(place)
            done = run_quickstart(script.replace(ADDRESS, address), address, folder)
        # As the README says of overloaded machines: the broker stays for a minute, and explain gives another reason.
        if "channel_end_doubted" not in (folder / "namesrv.log").read_text():
            break
    printed = re.sub(r"^(bash: line|\[1\]).+\n", "", done.stdout, flags=re.MULTILINE)  # of the shell, about its jobs
    assert masked(printed) == masked(shown).replace(ADDRESS, address)
    assert done.returncode == 0, (folder / "namesrv.log").read_text()
    assert any((folder / "data").iterdir()), "a snapshot"


def run_quickstart(script: str, address: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the commands in a folder that has the demo's topics; no process outlives it."""
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "COLUMNS": "118",
        "NAMESRV_LISTEN": address,
        "BROKER_AGENT_LISTEN": "127.0.0.1:0",
        "BROKER_AGENT_FAST_LISTEN": "127.0.0.1:0",
    }
    try:
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-c", script],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
            check=False,
        )
    finally:
        for pid in (folder / "pids").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def put(namesrv: NamesrvProcess, value: str) -> None:
    request = PutKvConfigRequest(namespace="ns", key="key", value=value)
    with namesrv.connect() as client:
        client.admin.PutKvConfig(request, timeout=client.TIMEOUT)


def test_documented_backup_of_a_running_name_server_is_restored(tmp_path: Path) -> None:
    backup, restore, *_ = code_blocks("docs/data_directory.md", "console")
    data_dir = tmp_path / "var/lib/namesrv"
    for part in ("var/lib/namesrv", "var/backups"):
        (tmp_path / part).mkdir(parents=True)

    def run_block(block: str) -> None:
        commands = "\n".join(re.findall(r"^[$#] (?!systemctl)(.+)$", block, re.MULTILINE))
        shell = ["bash", "-e", "-c", commands.replace("/var/", f"{tmp_path}/var/")]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=3 * TIMEOUT, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    with NamesrvProcess("--data-dir", str(data_dir)) as namesrv:
        put(namesrv, "acknowledged before the backup")
        run_block(backup)
        put(namesrv, "acknowledged after it")
        namesrv.kill()  # so that the log of the old database is there
    assert (data_dir / "namesrv.db-wal").stat().st_size
    run_block(restore)
    request = GetKvConfigRequest(namespace="ns", key="key")
    with NamesrvProcess("--data-dir", str(data_dir)) as restored, restored.connect() as client:
        assert client.admin.GetKvConfig(request, timeout=client.TIMEOUT).value == "acknowledged before the backup"
        put(restored, "new")
