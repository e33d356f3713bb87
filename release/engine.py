"""A private container engine: podman with private settings and storage, in a network nothing can leave."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
BASE_IMAGE = "python:3.11-slim"
"""What the Dockerfiles start from; a local image of that name stands in for it."""
PROGRAMS = ("podman", "runc", "ip", "nsenter", "iptables")
CONTAINER_SECONDS = 600
"""Containers end by themselves after this time, should the test process be killed before it can end them."""
MAX_PROCESSES = 16_384
"""Limit of processes a user; podman's own default is more than some machines grant."""


class NoEngineError(Exception):
    """This machine cannot run containers; the text says why."""


class CommandError(Exception):
    """A command failed; the text is the command and the end of what it printed."""


def run(
    command: list[str], *, environment: Mapping[str, str] | None = None, folder: str | None = None, timeout: float = 60
) -> str:
    """Runs a command to its end and returns its standard output without the last line end."""
    done = subprocess.run(
        command, env=environment, cwd=folder, timeout=timeout,
        check=False, text=True, capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        printed = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise CommandError(f"exit code {done.returncode}: {' '.join(command)}\n{printed}")
    return done.stdout.rstrip("\n")


@dataclass(frozen=True)
class Engine:
    """Podman with settings, storage and network of its own."""

    folder: Path
    """Settings, images, containers: all that is kept."""
    namespace: str
    """Name of the network namespace, which has no way out."""
    environment: Mapping[str, str]

    def enter(self, *command: str, timeout: float = 60) -> str:
        """Runs any command inside the network namespace."""
        # Not `ip netns exec`, which mounts a /sys without control groups.
        inside = ["nsenter", f"--net=/run/netns/{self.namespace}", *command]
        return run(inside, environment=self.environment, timeout=timeout)

    def podman(self, *arguments: str, timeout: float = 60) -> str:
        """Runs podman inside the network namespace."""
        return self.enter("podman", *arguments, timeout=timeout)

    def import_base(self, archive: Path) -> None:
        """Makes the base image from an archive of a root file system, and sees whether containers run at all."""
        try:
            self.podman("import", "-q", str(archive), f"localhost/{BASE_IMAGE}", timeout=180)
            self.podman("run", "--rm", "--network=none", f"localhost/{BASE_IMAGE}", "python", "--version")
        except (CommandError, subprocess.TimeoutExpired) as error:
            raise NoEngineError(f"podman cannot run a container here: {error}") from error


@contextmanager
def open_engine() -> Iterator[Engine]:
    """An engine for as long as the context lasts; afterwards nothing of it is left.

    Raises:
        NoEngineError: There can be none on this machine.
    """
    if os.geteuid() != 0:
        raise NoEngineError("network namespaces and private storage take root")
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        raise NoEngineError(f"not installed: {', '.join(missing)} (tests/containers/install_engine.sh installs them)")
    folder = Path(tempfile.mkdtemp(prefix="namesrv-containers-", dir="/var/tmp"))
    namespace = folder.name
    engine = Engine(folder, namespace, {**os.environ, **_write_settings(folder)})
    try:
        try:
            run(["ip", "netns", "add", namespace])
            engine.enter("ip", "link", "set", "lo", "up")
        except CommandError as error:
            raise NoEngineError(f"no network namespace: {error}") from error
        yield engine
    finally:
        _remove(engine)


def _write_settings(folder: Path) -> dict[str, str]:
    """Writes podman's settings and returns the variables that point to them."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = MAX_PROCESSES if processes == resource.RLIM_INFINITY else min(processes, MAX_PROCESSES)
    (folder / "tmp").mkdir()
    (folder / "containers.conf").write_text(f"""
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
""")
    (folder / "storage.conf").write_text(f"""
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
""")
    return {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "TMPDIR": str(folder / "tmp"),
    }


def _remove(engine: Engine) -> None:
    """Ends the containers and removes everything. After a step that fails, the next ones still run."""
    for step in (
        ["rm", "--force", "--time=1", "--all", "--volumes"],
        ["network", "prune", "--force"],
        ["volume", "prune", "--force"],
    ):
        try:
            engine.podman(*step)
        except (CommandError, subprocess.TimeoutExpired) as error:
            print(f"cleaning up: {error}")
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((path for path in mounted if path.startswith(f"{engine.folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    subprocess.run(["ip", "netns", "delete", engine.namespace], check=False, capture_output=True)
    shutil.rmtree(engine.folder, ignore_errors=True)
