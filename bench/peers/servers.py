"""The servers that are compared, each in processes of its own on loopback."""

from __future__ import annotations

import os
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from bench.peers.calls import Grpc, Language, Remoting
from bench.peers.generator import NotMeasured, pinned, program
from tests.support.programs.processes import BIN, Process, eventually, listens, unused_port
from tests.support.programs.rocketmq import RemotingClient
from tests.support.rocketmq_programs.maven import NEWEST, jars, missing
from tests.support.secured.certificates import Authority

ItemT = TypeVar("ItemT")

NATIVE = "native"
"""This name server."""
TLS = NATIVE + "+tls"
HALF_CACHE, NO_CACHE = NATIVE + "+half-cache", NATIVE + "+no-cache"
NAMESRV_REMOTING = "namesrv-remoting"
"""This name server over RocketMQ's own protocol."""
REMOTING_TLS = NAMESRV_REMOTING + "+tls"
JAVA = "java"
NULL = "null"
"""Answers without meaning: its rate is the most that the load generator can measure."""
SERVERS = (NATIVE, TLS, NAMESRV_REMOTING, REMOTING_TLS, JAVA, NULL)
_REMOTING = {NAMESRV_REMOTING, REMOTING_TLS}
_ON_REMOTING = ("--remoting-listen", "127.0.0.1:0", "--mass-loss-percent", "100")
"""Between two runs everybody leaves, which is no mass loss."""
VARIANTS = {
    NATIVE: (),
    TLS: (),
    NO_CACHE: ("--cache-bytes", "0"),
    HALF_CACHE: ("--cache-bytes", "4000000"),
    NAMESRV_REMOTING: _ON_REMOTING,
    REMOTING_TLS: (*_ON_REMOTING, "--remoting-tls", "enforcing"),
}
"""Options of this name server. Half a cache has the size of the answers about half of 20,000 topics of width 1."""
JAVA_VERSION = NEWEST.version

_JAVA_OPTIONS = (
    # As RocketMQ 5.5.0's runserver.sh sets them, with its heap of 4 GiB.
    *("-server", "-Xms4g", "-Xmx4g", "-XX:MetaspaceSize=128m", "-XX:MaxMetaspaceSize=320m", "-XX:+UseG1GC"),
    *("-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25", "-XX:InitiatingHeapOccupancyPercent=30"),
    *("-XX:SoftRefLRUPolicyMSPerMB=0", "-XX:-OmitStackTraceInFastThrow", "-XX:-UseLargePages"),
)
_GET_BROKER_CLUSTER_INFO = 106
_SETTLED_ANSWERS = 20
"""Equal answers, a hundredth of a second and more apart. After so many, no broker is expected to leave."""


class Server(Process):
    """A running server. Its table is empty."""

    def __init__(self, name: str, cores: str | None) -> None:
        """Starts it, on the given cores only. Raises NotMeasured."""
        self.name = name
        self.tls_ca: Path | None = None
        self._folder = tempfile.TemporaryDirectory()
        self.language: Language = Remoting() if name in {JAVA, *_REMOTING} else Grpc()
        # Java writes much there, and would wait for us to read it.
        log = Path(self._folder.name) / "log"
        port = unused_port()
        environment = {"ROCKETMQ_HOME": self._folder.name, "HOME": self._folder.name} if name == JAVA else {}
        with log.open("w") as output:
            super().__init__([*pinned(cores), *self._command(port)], environment, output=output.fileno())
        try:
            if name == JAVA:
                eventually(lambda: self._popen.poll() is not None or listens(port), within_seconds=60)
                assert self._popen.poll() is None, log.read_text() + self.raw
                self.target = f"127.0.0.1:{port}"
            else:
                started = "null_started" if name == NULL else "namesrv_started"
                self.target = str(self.wait_for(started)["remoting" if name in _REMOTING else "listen"])
        except BaseException as error:
            self.__exit__()
            if isinstance(error, AssertionError):
                raise NotMeasured(f"{name} does not start: {str(error)[-500:]}") from None
            raise

    def settle(self) -> None:
        """Waits until all brokers whose connection has ended have left, on servers that remove these.

        RocketMQ removes them some time after the end of the connection, even a broker that has registered again
        (apache/rocketmq issue 11043). A table that is filled at once would have holes.
        """
        if isinstance(self.language, Grpc):
            return
        sizes: list[int] = []
        tls = None if self.tls_ca is None else ssl.create_default_context(cafile=str(self.tls_ca))
        if tls is not None:
            tls.check_hostname = False

        def has_settled() -> bool:
            with closing(RemotingClient(self.target, tls)) as client:
                sizes.append(len(client.ask(_GET_BROKER_CLUSTER_INFO).body))
            return len(sizes) >= _SETTLED_ANSWERS and len(set(sizes[-_SETTLED_ANSWERS:])) == 1

        eventually(has_settled)

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        self._folder.cleanup()

    def _command(self, port: int) -> list[str]:
        if self.name == NULL:
            return [str(program()), "null"]
        if self.name == JAVA:
            return self._java(port)
        options = ["--listen", "127.0.0.1:0", "--log-format", "json", "--warm-up-millis", "0", *VARIANTS[self.name]]
        if self.name in {TLS, REMOTING_TLS}:
            authority = Authority(Path(self._folder.name))
            files = authority.sign("namesrv", dns=["localhost"], ips=["127.0.0.1"])
            self.tls_ca = authority.path
            options += ["--tls-cert", str(files.certificate), "--tls-key", str(files.key)]
        return [str(BIN / "namesrv"), "serve", *options]

    def _java(self, port: int) -> list[str]:
        if (problem := missing()) is not None:
            raise NotMeasured(problem)
        try:
            found = jars(NEWEST)
        except subprocess.SubprocessError as error:
            raise NotMeasured(f"Apache RocketMQ's name server cannot be fetched: {error}") from None
        folder = Path(self._folder.name)
        (folder / "namesrv.properties").write_text(f"bindAddress=127.0.0.1\nlistenPort={port}\n")
        main = ("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(folder / "namesrv.properties"))
        return ["java", *_JAVA_OPTIONS, f"-Duser.home={folder}", "-cp", f"{found}/*", *main]


def server_cores() -> tuple[str | None, str | None]:
    """The cores of a server and of its load: one for it and the others for the load. On one core, they share it."""
    first, *others = sorted(os.sched_getaffinity(0))
    return (str(first), ",".join(map(str, others))) if others else (None, None)


def turned(servers: Sequence[ItemT], number: int) -> list[ItemT]:
    """The servers in their order of a round: each round begins with another one."""
    start = (number - 1) % len(servers)
    return [*servers[start:], *servers[:start]]
