"""A machine that systemd has started, with the programs installed as docs/operating.md says.

Its files are those of this machine: what it changes is in a layer over them, which goes with it. It has none of this
machine's services and disks.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.release.engine import CONTAINER_SECONDS, REPOSITORY, CommandError, Engine, NoEngineError, run
from deploy.release.engine_wheel import engine_wheels
from namesrv_common.version import __version__
from tests.support.pages import code_blocks
from tests.support.programs.processes import eventually

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
SECONDS = 90.0
"""Time for systemd, or a service of ours, to come to a state on a busy machine."""


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

    def log(self, unit: str) -> list[dict[str, Any]]:
        """What a unit's processes have written, line by line; each is an object."""
        self.run("journalctl --sync")  # what they wrote last may be on its way to the journal yet
        text = self.run(f"journalctl _SYSTEMD_UNIT={unit}.service --output=cat --no-pager")
        return [json.loads(line) for line in text.splitlines()]

    def events(self, unit: str) -> list[str]:
        """The events of a unit's log."""
        return [str(line["event"]) for line in self.log(unit)]


@contextmanager
def started_machine(engine: Engine, folder: Path) -> Iterator[Machine]:
    """A machine with the wheels of a release and the files of deploy/systemd in root's home.

    Raises:
        NoEngineError: There can be none here.
        WheelError: The wheel of the native engine cannot be built.
    """
    _check_this_machine()
    wheels, units = folder / "wheels", folder / "units"
    gather_wheels(wheels, PYTHON)
    units.mkdir()
    no_disks = folder / "fstab"
    no_disks.touch()
    for name in MASKED:
        (units / f"{name}.service").symlink_to("/dev/null")
    machine = Machine(engine)
    try:
        engine.podman(
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
            engine.podman("cp", str(file), f"{NAME}:/root/{file.name}")
        yield machine
    finally:
        engine.podman("rm", "--force", "--time=5", "--ignore", NAME)


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


def gather_wheels(folder: Path, python: str, extras: str = EXTRAS) -> None:
    """Puts the wheels of a release into a folder, and all that they need, as docs/install.md gathers them.

    They are for the version of an interpreter. Raises NoEngineError, if there is no package index, and WheelError.
    """
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run([*pip, "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}", str(REPOSITORY)], timeout=300)
    ours = folder / f"namesrv-{__version__}-py3-none-any.whl"
    engine = engine_wheels()[0]
    version = run([python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"])
    download = [*pip, "download", "--quiet", "--only-binary=:all:", f"--python-version={version}", f"--dest={folder}"]
    try:
        run([*download, f"{ours}[{extras}]", str(engine)], timeout=300)
    except CommandError as error:
        raise NoEngineError(f"what the programs need cannot be downloaded: {error}") from error


def documented(part: str) -> list[str]:
    """The commands that root types, of the block of docs/operating.md that a text is a part of."""
    (block,) = [block for block in code_blocks("docs/operating.md", "console") if part in block]
    typed = [line.removeprefix("# ") for line in block.splitlines() if line.startswith("# ")]
    return [re.sub(r"\s{3,}# .*", "", command) for command in typed]
