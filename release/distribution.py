"""Builds a release into dist/, and runs what its wheels and its source distribution install from empty environments.

    python -m release.distribution

The wheel of all programs is built from the source distribution, so nothing that the repository has beyond it can be in
use. The wheel of the client library has a part of its files. Where there is cargo, the wheels of the native engine are
built, too, and a name server serves on the one for this machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

from namesrv_common.printable import how_to_install
from namesrv_common.version import __version__
from release.bundle import DistributionError, bundle
from release.engine import REPOSITORY, CommandError
from release.engine import run as run_command
from release.engine_wheel import NoCargoError, WheelError, engine_wheels, possible_targets
from tests.support.programs.processes import Process

DIST = REPOSITORY / "dist"
BUILD = "build==1.6.1"
"""What builds: it puts the requirements of pyproject.toml's build system into an environment of its own."""
STEP_SECONDS = 600
PROGRAMS: dict[str, tuple[str, ...]] = {
    "namesrv": ("namesrv",),
    "broker-agent": ("broker-agent",),
    "nsctl": ("nsctl",),
    "console": ("nsctl", "console"),
}
"""Extras, each with the command line that needs it and nothing else. The pipeline's is left out: it brings Spark."""
SCRIPTS = {"namesrv": "namesrv", "broker-agent": "broker-agent", "nsctl": "nsctl", "route-pipeline": "route-pipeline"}
"""Console scripts, each with the extra that it asks for where it is missing."""
NEEDED_IN_SDIST = (
    "CHANGELOG.md",
    "LICENSE",
    "engine/vendor/h2/src/lib.rs",
    "README.md",
    "protos/generate.py",
    "protos/namesrv_api/v1/route_service.proto",
)
GENERATED_IN_WHEEL = (
    "namesrv_api/v1/route_service_pb2.py",
    "namesrv_api/v1/route_service_pb2.pyi",
    "namesrv_api/py.typed",
    "namesrv_internal/v1/diagnostics_service_pb2.py",
    "broker_agent_api/v1/broker_agent_service_pb2_grpc.py",
)
CLIENT = "namesrv-client"
"""The distribution of the client library alone."""
CLIENT_PACKAGES = ("namesrv_common", "namesrv_api", "namesrv_internal", "route_client")
NOT_IN_WHEEL = ("tests/", "examples/", "bench/", "docs/")
NOT_IN_SDIST = ("gen/", ".venv/", ".ci/", "build/", "engine/target/")
CLIENT_CHECK = """
import sys, grpc
from namesrv_api.v1 import route_service_pb2_grpc
from route_client import RouteClient
RouteClient("127.0.0.1:1").close()
unwanted = {"pydantic_settings", "pyspark", "typer", "structlog"} & set(sys.modules)
assert not unwanted, unwanted
"""
"""What a program that only looks up imports, with nothing installed but the library's own requirements."""


def run(*command: str | Path) -> str:
    """Runs a command to its end, away from the repository, and returns what it printed. Raises CommandError."""
    print("+", *command, flush=True)
    return run_command(list(map(str, command)), folder=tempfile.gettempdir(), timeout=STEP_SECONDS)


def empty_environment(folder: Path) -> Path:
    """Makes a virtual environment without anything in it; returns its folder of programs."""
    venv.create(folder)
    return folder / "bin"


def install(programs: Path, *what: str | Path) -> None:
    """Installs into an environment. Raises CommandError."""
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-compile", *what)


def build(scratch: Path, folder: Path = DIST) -> tuple[Path, Path]:
    """Builds both into a folder, the wheel from the source distribution; returns the wheel and that."""
    for old in {*folder.glob("*")} - {*folder.glob("namesrv_engine-*.whl")}:
        if old.is_file():  # a build that was killed leaves a folder
            old.unlink()
    programs = empty_environment(scratch / "build")
    install(programs, BUILD)
    run(programs / "python", "-m", "build", "--outdir", folder, REPOSITORY)
    return folder / f"namesrv-{__version__}-py3-none-any.whl", folder / f"namesrv-{__version__}.tar.gz"


def build_client(scratch: Path, wheel: Path) -> Path:
    """Builds the wheel of the client library from the files of the other wheel, into the folder of that; returns it."""
    source = scratch / "client"
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(source, [name for name in opened.namelist() if name.partition("/")[0] in CLIENT_PACKAGES])
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (source / "LICENSE").write_bytes((REPOSITORY / "LICENSE").read_bytes())
    (source / "pyproject.toml").write_text(
        f"""[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"
[project]
name = "{CLIENT}"
version = "{__version__}"
description = "The client library of the name server for message brokers"
requires-python = "{project["requires-python"]}"
license = "{project["license"]}"
license-files = ["LICENSE"]
dependencies = {json.dumps(project["dependencies"])}
[tool.hatch.build.targets.wheel]
packages = {json.dumps(CLIENT_PACKAGES)}
""",
        encoding="utf-8",
    )
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheel.parent, source)
    return wheel.parent / f"namesrv_client-{__version__}-py3-none-any.whl"


def check_client(scratch: Path, wheel: Path) -> None:
    """Sees that the client library works alone, and that its wheel has no other package. Raises DistributionError."""
    with zipfile.ZipFile(wheel) as opened:
        tops = {name.partition("/")[0] for name in opened.namelist()}
    if tops != {*CLIENT_PACKAGES, f"namesrv_client-{__version__}.dist-info"}:
        raise DistributionError(f"the client's wheel has {sorted(tops)}")
    programs = empty_environment(scratch / "client-library")
    install(programs, wheel)
    run(programs / "python", "-W", "error", "-c", CLIENT_CHECK)


def check_contents(wheel: Path, sdist: Path) -> None:
    """Sees that both hold what they must and nothing else. Raises DistributionError."""
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as opened:
        files = set(opened.namelist())
    missing = [name for name in NEEDED_IN_SDIST if name not in sources]
    missing += [name for name in GENERATED_IN_WHEEL if name not in files]
    surplus = [name for name in files if name.startswith(NOT_IN_WHEEL)]
    surplus += [name for name in sources if name.startswith(NOT_IN_SDIST)]
    if missing or surplus:
        raise DistributionError(f"missing: {missing}; not to be there: {surplus}")


def check_library(scratch: Path, what: Path) -> None:
    """Installs no extra: the library works, and each console script says in one line what it lacks.

    Raises DistributionError.
    """
    programs = empty_environment(scratch / f"library-{what.suffix}")
    install(programs, what)
    run(programs / "python", "-W", "error", "-c", CLIENT_CHECK)
    for script, extra in SCRIPTS.items():
        done = subprocess.run(
            [programs / script, "--version"], capture_output=True, text=True, timeout=STEP_SECONDS, check=False
        )
        wanted = rf"{script}: \w+ is missing; {re.escape(how_to_install(extra))}\n"
        if (done.returncode, done.stdout) != (2, "") or not re.fullmatch(wanted, done.stderr):
            raise DistributionError(f"{script} without its extra ended with {done.returncode}: {done.stderr}")


def check_program(scratch: Path, what: Path, extra: str) -> None:
    """Installs one extra into an empty environment, as docs/install.md says, and asks its program for its version.

    Raises DistributionError.
    """
    programs = empty_environment(scratch / f"{extra}-{what.suffix}")
    install(programs, f"{what}[{extra}]")
    script, *command = PROGRAMS[extra]
    said = run(programs / script, "--version").split()
    if said[-1:] != [__version__]:
        raise DistributionError(f"{script} --version says {said}, not {__version__}")
    run(programs / script, *command, "--help")


def check_native(scratch: Path, wheel: Path, engine: Path) -> None:
    """Installs both wheels into an empty environment and serves on native. Raises DistributionError."""
    programs = empty_environment(scratch / "native")
    install(programs, "--only-binary=:all:", f"{wheel}[namesrv,nsctl]", engine)
    serve = [str(programs / "namesrv"), "serve", "--listen", "127.0.0.1:0", "--log-format", "json"]
    print("+", *serve, flush=True)
    with Process(serve) as namesrv:
        started = namesrv.wait_for("namesrv_started")
        print(run(programs / "nsctl", "status", "--namesrv", started["listen"]))
        code = namesrv.terminate()
    if (started["engine"], code) != ("native", 0):
        raise DistributionError(f"served on {started['engine']}, ended with {code}")


def engines_if_possible() -> list[Path]:
    """The wheels of the native engine, this machine's first; none where there is no cargo. Raises WheelError."""
    try:
        return engine_wheels(DIST, possible_targets())
    except NoCargoError as error:
        print(f"left out: {error}")
        return []


def main() -> int:
    """Runs the program; returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="namesrv-dist-") as folder:
        try:
            wheel, sdist = build(Path(folder))
            check_contents(wheel, sdist)
            for what in (wheel, sdist):
                check_library(Path(folder), what)
                for extra in PROGRAMS:
                    check_program(Path(folder), what, extra)
            client = build_client(Path(folder), wheel)
            check_client(Path(folder), client)
            if engines := engines_if_possible():
                check_native(Path(folder), wheel, engines[0])
            bundle(DIST)
        except (CommandError, DistributionError, WheelError) as error:
            print(error, file=sys.stderr)
            return 1
    for what in sorted(filter(Path.is_file, DIST.iterdir())):
        print(f"{what.relative_to(REPOSITORY)}: {what.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
