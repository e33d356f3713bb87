"""The units of deploy/systemd under a real systemd, installed from wheels by the commands of docs/operating.md.

The files of the machine are those of this machine: what it changes is in a layer over them, which goes with it. It has
none of this machine's services and disks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from namesrv_common.version import __version__
from release.engine import CONTAINER_SECONDS, REPOSITORY, CommandError, Engine, NoEngineError, run
from release.engine_wheel import NoCargoError
from tests.containers.conftest import SECONDS, gather_wheels
from tests.support.pages import code_blocks
from tests.support.programs.processes import eventually

pytestmark = pytest.mark.timeout(600)

NAME = "machine"
SYSTEMD = Path("/lib/systemd/systemd")
PYTHON = "/usr/bin/python3"
"""Of the system: services see no folder of root's, in which others may be."""
MASKED = (
    *("systemd-binfmt", "systemd-modules-load", "systemd-sysctl"),
    *("systemd-udevd", "systemd-udev-trigger", "systemd-udev-settle"),
)
"""Services that would change the kernel or its devices, which are this machine's own."""
FOLDERS = ("/run", "/run/lock", "/tmp", "/var/log/journal")
"""Folders that begin empty."""
UNITS = REPOSITORY / "deploy/systemd"
WHEELS = "/mnt"
"""Where the machine has the wheels: it has no network."""
EXTRAS = "namesrv,broker-agent,nsctl"
AGENT = "broker-agent@broker-a"
NSCTL = "/opt/namesrv/bin/nsctl"
HERE = (
    ('["10.0.0.11:9878", "10.0.0.12:9878", "10.0.0.13:9878"]', '["127.0.0.1:9878"]'),
    ('"10.0.0.21:10911"', '"127.0.0.1:9878"'),  # answers instead of the broker
)
"""What an operator edits in broker-a.toml."""


@dataclass(frozen=True)
class Machine:
    """A machine that systemd has started."""

    engine: Engine

    def run(self, command: str, timeout: float = 60) -> str:
        """What a shell of root prints for a command, in its home. Raises CommandError."""
        return self.engine.podman("exec", "--workdir=/root", NAME, "sh", "-euc", command, timeout=timeout)

    def told_of(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run(f"systemctl show --property={name} --value {unit}")

    def wait_until(self, unit: str, name: str, value: str) -> None:
        """Waits until a property of a unit has a value."""
        eventually(lambda: self.told_of(unit, name), lambda now: now == value, SECONDS)

    def lines(self, unit: str) -> list[str]:
        """What a unit's processes have written."""
        self.run("journalctl --sync")  # what they wrote last may be on its way to the journal yet
        return self.run(f"journalctl _SYSTEMD_UNIT={unit}.service --output=cat --no-pager").splitlines()

    def log(self, unit: str) -> list[dict[str, Any]]:
        """The same of a service that has started; each line is an object."""
        return [json.loads(line) for line in self.lines(unit)]

    def events(self, unit: str) -> list[str]:
        """The events of a unit's log."""
        return [str(line["event"]) for line in self.log(unit)]


def _state(machine: Machine) -> str:
    try:
        return machine.run("systemctl is-system-running || true")
    except CommandError as error:
        return str(error)


def _check_this_machine() -> None:
    if not SYSTEMD.exists():
        raise NoEngineError(f"there is no {SYSTEMD} (tests/containers/install_engine.sh installs it)")
    try:
        run([PYTHON, "-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"])
    except (CommandError, FileNotFoundError) as error:
        raise NoEngineError(f"{PYTHON} is none that makes environments for the programs: {error}") from error


def documented(part: str) -> list[str]:
    """The commands that root types, of the block of docs/operating.md that a text is a part of."""
    (block,) = [block for block in code_blocks("docs/operating.md", "console") if part in block]
    typed = [line.removeprefix("# ") for line in block.splitlines() if line.startswith("# ")]
    return [re.sub(r"\s{3,}# .*", "", command) for command in typed]


@pytest.fixture(scope="module")
def machine(empty_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which the commands of the page have been typed. Its broker has written nothing yet.

    Root's home has the wheels of a release and the files of deploy/systemd.
    """
    folder = tmp_path_factory.mktemp("machine")
    wheels, units, no_disks = folder / "wheels", folder / "units", folder / "fstab"
    try:
        _check_this_machine()
        gather_wheels(wheels, PYTHON, EXTRAS)
    except (NoEngineError, NoCargoError) as error:
        pytest.skip(f"no machine with systemd and the wheels: {error}")
    units.mkdir()
    no_disks.touch()
    for name in MASKED:
        (units / f"{name}.service").symlink_to("/dev/null")
    machine = Machine(empty_engine)
    try:
        empty_engine.podman(
            *("run", "--detach", f"--name={NAME}", "--network=none", "--privileged", "--systemd=always"),
            *(f"--tmpfs={path}:rw,exec,notmpcopyup" for path in FOLDERS),
            *(f"--timeout={CONTAINER_SECONDS}", f"--volume={wheels}:{WHEELS}:ro"),
            *(f"--volume={units}:/etc/systemd/system", f"--volume={no_disks}:/etc/fstab:ro"),
            *("--env=PIP_NO_INDEX=1", f"--env=PIP_FIND_LINKS={WHEELS}"),
            *("--env=PATH=/usr/sbin:/usr/bin:/sbin:/bin", "--rootfs", "/:O", str(SYSTEMD)),
        )
        eventually(lambda: _state(machine), lambda state: state in {"running", "degraded"}, SECONDS)
        machine.run(f"cp {WHEELS}/namesrv*.whl .")
        for file in UNITS.iterdir():
            empty_engine.podman("cp", str(file), f"{NAME}:/root/{file.name}")
        text = (UNITS / "broker-a.toml").read_text()
        for old, new in HERE:
            assert old in text
            text = text.replace(old, new)
        machine.run(f"cat > broker-a.toml <<'END'\n{text}\nEND")
        for command in documented("enable --now broker-agent@broker-a"):
            machine.run(command, timeout=300)
        yield machine
    finally:
        empty_engine.podman("rm", "--force", "--time=5", "--ignore", NAME)


def test_both_services_are_up_and_a_broker_without_files_is_in_the_routes(machine: Machine) -> None:
    for unit in ("namesrv", AGENT):
        machine.wait_until(unit, "ActiveState", "active")
        assert "active (running)" in machine.run(f"systemctl status {unit}")
    eventually(lambda: "registered" in machine.events(AGENT), within_seconds=SECONDS)
    assert "topics_file_awaited" in machine.events(AGENT)
    route = machine.run(f"{NSCTL} route TBW102 --namesrv 127.0.0.1:9878 -o json")
    assert "broker-a" in route
    (started,) = [line for line in machine.log("namesrv") if line["event"] == "namesrv_started"]
    assert started["engine"] == "native"


def test_systemd_finds_nothing_wrong_with_the_units_and_they_are_sealed(machine: Machine) -> None:
    units = "namesrv.service broker-agent@broker-a.service"
    machine.run("cp namesrv.socket /run/systemd/system/")
    assert machine.run(f"systemd-analyze verify --man=no --recursive-errors=no {units} namesrv.socket 2>&1") == ""
    machine.run("rm /run/systemd/system/namesrv.socket; systemctl daemon-reload")
    for unit in units.split():
        machine.run(f"systemd-analyze security --threshold=25 --no-pager {unit}")


def test_a_killed_program_is_started_again_and_finds_its_intents(machine: Machine) -> None:
    machine.run(f"{NSCTL} kv put ORDER_TOPIC_CONFIG T broker-a:4 --namesrv 127.0.0.1:9878")
    for unit in (AGENT, "namesrv"):  # the agent registers again, too, once the name server is another
        restarts = int(machine.told_of(unit, "NRestarts"))
        started = machine.events(unit).count("registered" if unit == AGENT else "namesrv_started")
        machine.run(f"systemctl kill --signal=KILL {unit}")
        machine.wait_until(unit, "NRestarts", str(restarts + 1))
        machine.wait_until(unit, "ActiveState", "active")
        event = "registered" if unit == AGENT else "namesrv_started"
        eventually(lambda: machine.events(unit).count(event), lambda now: now > started, SECONDS)  # noqa: B023
    kept = machine.run(f"{NSCTL} kv get ORDER_TOPIC_CONFIG T --namesrv 127.0.0.1:9878 -o json")
    assert "broker-a:4" in json.dumps(json.loads(kept))
    assert machine.run("stat -c %a /var/lib/private/namesrv") == "750"


def test_a_program_whose_event_loop_stands_still_is_started_again(machine: Machine) -> None:
    for unit in (AGENT, "namesrv"):
        restarts = int(machine.told_of(unit, "NRestarts"))
        machine.run(f"systemctl kill --signal=STOP {unit}")
        machine.wait_until(unit, "NRestarts", str(restarts + 1))
        machine.wait_until(unit, "ActiveState", "active")


def test_a_reload_has_watched_files_read_again_and_ends_nothing(machine: Machine) -> None:
    for unit in (AGENT, "namesrv"):
        restarts, process = machine.told_of(unit, "NRestarts"), machine.told_of(unit, "MainPID")
        reloads = machine.events(unit).count("reload_requested")
        machine.run(f"systemctl reload {unit}")
        eventually(lambda: machine.events(unit).count("reload_requested"), lambda now: now > reloads, SECONDS)  # noqa: B023
        assert (machine.told_of(unit, "NRestarts"), machine.told_of(unit, "MainPID")) == (restarts, process)


def test_a_wrong_setting_ends_the_service_once_and_for_all(machine: Machine) -> None:
    machine.run("cp /etc/broker-agent/broker-a.toml /etc/broker-agent/wrong.toml")
    machine.run("echo 'no_such_setting = 1' >> /etc/broker-agent/wrong.toml")
    machine.run("! systemctl start broker-agent@wrong")
    machine.wait_until("broker-agent@wrong", "ActiveState", "failed")
    assert machine.told_of("broker-agent@wrong", "NRestarts") == "0"
    assert machine.told_of("broker-agent@wrong", "ExecMainStatus") == "2"
    said = "broker-agent: setting no_such_setting: there is no such setting"
    assert machine.lines("broker-agent@wrong") == [said]
    machine.run("systemctl reset-failed broker-agent@wrong")


def test_a_service_ends_cleanly_and_systemd_listens_for_the_next(machine: Machine) -> None:
    for command in documented("enable --now namesrv.socket namesrv"):
        machine.run(command)
    for unit in ("namesrv.socket", "namesrv"):
        machine.wait_until(unit, "ActiveState", "active")
    # The agent would connect again, and so start the next name server.
    machine.run("systemctl stop " + AGENT)
    assert machine.told_of(AGENT, "Result") == "success"
    machine.run("systemctl stop namesrv")
    assert machine.told_of("namesrv", "Result") == "success"
    assert machine.told_of("namesrv", "ExecMainStatus") == "0"
    assert machine.events("namesrv")[-1] == "namesrv_stopped"
    # A caller that connects while no name server runs waits, and systemd starts one.
    status = machine.run(f"{NSCTL} status --namesrv 127.0.0.1:9878 --timeout 60 -o json", timeout=90)
    assert json.loads(status)[0]["version"] == __version__
    started = [line for line in machine.log("namesrv") if line["event"] == "namesrv_started"]
    assert (started[-1]["engine"], started[-1]["remoting"]) == ("native", "0.0.0.0:9876")
    machine.wait_until("namesrv", "ActiveState", "active")


def test_what_stands_in_the_journal_of_our_services_is_json_alone(machine: Machine) -> None:
    for unit in ("namesrv", AGENT):
        assert all({"event", "level", "timestamp"} <= line.keys() for line in machine.log(unit))
    assert machine.told_of("namesrv", "ActiveState") == "active"
