"""Clients written in other languages: built from protos/ with those languages' own tools, and run."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from release import engine
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Process, ended
from tests.support.rocketmq_programs.maven import MAVEN_OPTIONS, maven_environment
from tests.support.secured.fleet import TOKENS, Place

REPOSITORY = Path(__file__).resolve().parents[2]
INTEROP = Path(__file__).resolve().parent
WATCHING = REPOSITORY / "examples" / "watch"
"""The programs that docs/grpc.md names."""

INSTALL_SECONDS = 360
"""Downloading and compiling from scratch takes 3 s for Node, 30 s for Go and Java each, 90 s for Rust: two cores, a
fast network."""
RUN_SECONDS = 1.5 * TIMEOUT
"""How long a program may take to print what it is expected to."""
OLDEST_GO = (1, 25)
OLDEST_NODE = (18,)
OLDEST_JAVA = (17,)

NODE_PROGRAMS = ("balanced", "lookup", "watching")
GO_PROGRAMS = ("broker", "conformance", "example", "lookup")

# A proxy that the machine has for the outside world is not for the loopback interface. Java reads its arguments in
# the locale's encoding.
ENVIRONMENT = os.environ | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1", "LC_ALL": "C.UTF-8"}
GO_ENVIRONMENT = ENVIRONMENT | {"CGO_ENABLED": "0"}
"""Without C, Go compiles less of its own library."""


@dataclass(frozen=True)
class Programs:
    """One language's clients, freshly built."""

    folder: Path
    commands: Mapping[str, Sequence[str]]

    def run(self, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end, with more variables in its environment."""
        done = ended([*self.commands[name], *arguments], ENVIRONMENT | environment, self.folder)
        done.stderr = without_jvm_warnings(done.stderr)
        return done

    def start(self, name: str, *arguments: str, **environment: str) -> RunningProgram:
        """Starts a program that prints lines until it is ended, with more variables in its environment."""
        return RunningProgram([*self.commands[name], *arguments], self.folder, environment)


class RunningProgram(Process):
    """A program whose lines are read as they come; killed at the end of the context."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        super().__init__([*command], ENVIRONMENT | environment, folder=folder, pipes=True)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read_lines, daemon=True).start()

    def _read_lines(self) -> None:
        with suppress(ValueError):  # closed at the end of the context
            for line in self.pipes[1]:
                self._lines.put(line)
        self._lines.put("")

    def next_line(self) -> dict[str, Any]:
        """The next line, which is JSON; fails if the program ends instead."""
        parsed: dict[str, Any] = json.loads(self.next_text())
        return parsed

    def next_text(self) -> str:
        """The next line as it is; fails if the program ends instead."""
        line = self._lines.get(timeout=RUN_SECONDS)
        assert line, self.end()
        return line.removesuffix("\n")

    def go_on(self, line: str = "") -> None:
        """Gives the program a line, empty unless told otherwise."""
        self.pipes[0].write(f"{line}\n")
        self.pipes[0].flush()

    def end(self) -> tuple[int, str]:
        """Waits for the program's end; returns its exit code and what it wrote to standard error."""
        return self.wait(RUN_SECONDS), without_jvm_warnings(self.raw)


def shown_by_client(place: Place, kind: str) -> dict[str, str]:
    """What a program is told to trust, and to show to a name server of a kind: a token or a certificate."""
    certificate, key = map(str, place.callers["client"])
    shown = {"token": {"NAMESRV_TOKEN": TOKENS["client"]}, "mTLS": {"NAMESRV_CERT": certificate, "NAMESRV_KEY": key}}
    return {"NAMESRV_CA": str(place.authority.path), **shown[kind]}


def without_jvm_warnings(text: str) -> str:
    """What a program wrote itself: newer Java runtimes warn of what gRPC's network library does inside."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() and not line.startswith("WARNING: "))


def build_node(folder: Path) -> Programs:
    """Installs the packages that the lock file pins."""
    node, npm = require("node"), require("npm")
    require_version("node", [node, "--version"], OLDEST_NODE)
    client = copy_client("node", folder)
    # No package of ours needs its install script to run, so none may.
    run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], client, os.environ)
    # The page's program stands next to its packages and protos/.
    shutil.copy(WATCHING / "watch.mjs", client / "watching.mjs")
    shutil.copytree(folder / "protos", client / "protos")
    return Programs(client, {name: [node, f"{name}.mjs"] for name in NODE_PROGRAMS})


def build_go(folder: Path) -> Programs:
    """Builds the code generators that go.mod pins, generates the code, compiles the clients, with clients/go."""
    go, buf = require("go"), require("buf")
    require_version("go", [go, "env", "GOVERSION"], OLDEST_GO)
    client, tools = copy_client("go", folder), folder / "bin"
    library = folder / "clients" / "go"
    shutil.copytree(REPOSITORY / "clients" / "go", library)
    environment = GO_ENVIRONMENT | {"GOBIN": str(tools), "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    run([go, "install", "tool"], library, environment)
    run([buf, "generate", "contract"], library, environment)
    for module in (library, client):
        run([go, "build", "-o", f"{tools}{os.sep}", "./..."], module, environment)
    return Programs(client, {name: [str(tools / name)] for name in GO_PROGRAMS})


def build_java(folder: Path) -> Programs:
    """Compiles the client module with the protoc that its pom.xml pins, and the programs over it."""
    java, javac, mvn = require("java"), require("javac"), require("mvn")
    require_version("javac", [javac, "-version"], OLDEST_JAVA)
    module = folder / "clients" / "java"
    for needed in ("protos", "clients/java", "examples/service_config.json"):
        copy(REPOSITORY / needed, folder / needed)
    run([mvn, *MAVEN_OPTIONS, "test-compile"], module, maven_environment())
    target = module / "target"
    class_path = os.pathsep.join(map(str, (target / "classes", target / "test-classes", target / "lib" / "*")))
    sources = [*(INTEROP / "java").glob("*.java"), module / "example" / "Routes.java"]
    run([javac, "-proc:none", "-cp", class_path, "-d", str(target / "classes"), *map(str, sources)], module, os.environ)
    # The faster compiler alone: these programs live for seconds.
    command = [java, "-XX:TieredStopAtLevel=1", "-cp", class_path]
    classes = {"balanced": "interop.Balanced", "routes": "Routes", "conformance": "dev.namesrv.client.Conformance"}
    return Programs(module, {name: [*command, main_class] for name, main_class in classes.items()})


def build_rust(folder: Path) -> Programs:
    """Compiles the page's program with the crates that Cargo.lock pins. ``build.rs`` generates its code from protos/.

    The next run finds the compiled crates in ``build``.
    """
    cargo = require("cargo")
    client = copy_client("rust", folder)
    # Cargo.toml names the page's program by its path in the repository.
    watching = folder / WATCHING.relative_to(REPOSITORY)
    watching.mkdir(parents=True)
    shutil.copy(WATCHING / "watch.rs", watching)
    target = REPOSITORY / "build" / "interop-rust"
    run([cargo, "build", "--locked", "--quiet", "--target-dir", str(target)], client, os.environ)
    return Programs(client, {"watching": [str(target / "debug" / "watch")]})


def copy(source: Path, target: Path) -> None:
    """Copies a file, or a folder without what was built or installed in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copy(source, target)
    else:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("node_modules", "target"))


def copy_client(language: str, folder: Path) -> Path:
    """Copies a client, and protos/ to where the client has it in the repository, so that this tree stays clean."""
    client = folder / "tests" / "interop" / language
    copy(INTEROP / language, client)
    copy(REPOSITORY / "protos", folder / "protos")
    return client


def require(tool: str) -> str:
    """Finds a tool next to the interpreter or on the path; skips the test, naming it, where there is none."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return shutil.which(tool, path=path) or pytest.skip(f"{tool} is not installed")


def require_version(tool: str, command: Sequence[str], oldest: tuple[int, ...]) -> None:
    """Skips the test, naming the tool, where its version is too old."""
    text = engine.run([*command])
    version = tuple(int(number) for number in re.findall(r"\d+", text))
    if version < oldest:
        pytest.skip(f"{tool} {text} is older than {'.'.join(map(str, oldest))}")


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Runs a build step."""
    engine.run([*command], environment=environment, folder=str(folder), timeout=INSTALL_SECONDS)
