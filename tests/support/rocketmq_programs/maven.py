"""RocketMQ's jars from Maven Central, and our small programs that use them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Release(NamedTuple):
    """Programs of one version."""

    version: str
    artifacts: tuple[str, ...]
    """What Maven fetches, with all that it needs."""
    sources: tuple[str, ...]
    """Programs of ours that use it."""


_SERVERS = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-tools")
NEWEST = Release("5.5.0", (*_SERVERS, "rocketmq-proxy"), ("Shell", "Messages"))
OLD = Release("4.9.7", _SERVERS, ("Shell", "Messages"))
"""The newest 4.9 whose broker and name server are in Maven Central: of 4.9.8 there is the client only."""
GRPC_CLIENT = Release("5.2.0", ("rocketmq-client-java",), ("Shell", "GrpcMessages"))
"""RocketMQ 5's client that speaks gRPC to a proxy. It needs a class path of its own."""

MAVEN_OPTIONS = ("--batch-mode", "--quiet", "--no-transfer-progress")
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FOLDER = Path(__file__).parent / "java"
_CACHE = Path(__file__).parents[3] / ".bench"
_FETCH_SECONDS = 600.0
_COMPILE_SECONDS = 120.0
_OLDEST_JAVA = 11


def missing() -> str | None:
    """What RocketMQ's programs need and this machine does not have, in a sentence; None if all is there."""
    needs = f"RocketMQ's programs need Java {_OLDEST_JAVA} or later (a JDK) and Maven"
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"{needs}: {tool} is missing"
    said = subprocess.run(
        ["javac", "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    version = said.stdout.split()[-1]
    return f"{needs}: javac is {version}" if int(version.split(".")[0]) < _OLDEST_JAVA else None


def class_path(release: Release) -> str:
    """What Java finds of a release: its jars, and our programs. Fetched and compiled once."""
    return f"{jars(release)}/*:{_classes(release)}"


def maven_environment() -> dict[str, str]:
    """The environment, with the faster compiler of Java for Maven: a build of seconds takes half the processor time."""
    return {"MAVEN_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **os.environ}


@cache
def jars(release: Release) -> Path:
    """The folder of a release's jars. Fetched once."""
    needed = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{name}</artifactId>"
        f"<version>{release.version}</version></dependency>"
        for name in release.artifacts
    )
    pom = (
        "<project><modelVersion>4.0.0</modelVersion><packaging>pom</packaging><groupId>support</groupId>"
        f"<artifactId>programs</artifactId><version>1</version><dependencies>{needed}</dependencies></project>"
    )
    with _made_once(f"rocketmq-{release.version}-{_stamp([pom.encode()])}") as (folder, fetched):
        if fetched is not None:
            fetched.mkdir()
            (file := fetched / "pom.xml").write_text(pom)
            options = [*MAVEN_OPTIONS, "--file", str(file), "-DincludeScope=runtime", f"-DoutputDirectory={fetched}"]
            subprocess.run(["mvn", *options, _COPY], check=True, env=maven_environment(), timeout=_FETCH_SECONDS)
    return folder


@cache
def _classes(release: Release) -> Path:
    sources = [_FOLDER / f"{name}.java" for name in release.sources]
    found, stamp = jars(release), _stamp(source.read_bytes() for source in sources)
    with _made_once(f"rocketmq-{release.version}-classes-{stamp}") as (folder, compiled):
        if compiled is not None:
            command = ["javac", "-proc:none", "-cp", f"{found}/*", "-d", str(compiled), *map(str, sources)]
            subprocess.run(command, check=True, timeout=_COMPILE_SECONDS)
    return folder


@contextmanager
def _made_once(name: str) -> Iterator[tuple[Path, Path | None]]:
    """A folder of the cache, and where to make it if it is not there; others who want one wait in the meantime."""
    folder, part = _CACHE / name, _CACHE / f"{name}.part"
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "rocketmq.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            yield folder, None
            return
        shutil.rmtree(part, ignore_errors=True)
        yield folder, part
        part.rename(folder)


def _stamp(contents: Iterable[bytes]) -> str:
    """A name for contents, as a cache must not outlive them."""
    return f"{zlib.crc32(b''.join(contents)):08x}"
