"""The servers that are compared, each in processes of its own on loopback, with its own start options."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from bench.peers import remoting
from bench.peers.calls import Grpc, Language, Remoting
from bench.peers.generator import pinned, program
from bench.peers.recipes import CACHE, Missing, RecipeFailed, run_recipe
from tests.support.programs.processes import BIN, Process, eventually
from tests.support.secured.certificates import Authority

ItemT = TypeVar("ItemT")

NATIVE = "native"
"""This name server."""
NAIVE = "naive"
JAVA = "java"
RUST = "rust"
NULL = "null"
NULL_REMOTING = "null-remoting"
"""Answer without meaning: what they reach is the most that the load generator can measure."""
NAMESRV_REMOTING = "namesrv-remoting"
"""This name server over RocketMQ's own protocol."""
TLS = "+tls"
_FRONT = ("--remoting-listen", "127.0.0.1:0")
VARIANTS = {
    "+front": _FRONT,
    "+2-threads": ("--engine-threads", "2"),
    "+no-cache": ("--cache-bytes", "0"),
    "+half-cache": ("--cache-bytes", "4000000"),
}
"""This name server with other options, by how its name ends: measured when it is asked for. Half of a cache is room for
the answers about half of 20,000 topics of width 1, so that half of the lookups are hits. A front is RocketMQ's protocol
beside gRPC, with nobody on it."""
RUST_VERSION = "1.0.0"
JAVA_VERSION = "5.5.0"
"""``java/pom.xml`` says it, too."""

_JAVA_POM = Path(__file__).parent / "java" / "pom.xml"
_JAVA_OPTIONS = (
    # As RocketMQ 5.5.0's runserver.sh sets them, with its heap of 4 GiB.
    "-server",
    "-Xms4g",
    "-Xmx4g",
    "-XX:MetaspaceSize=128m",
    "-XX:MaxMetaspaceSize=320m",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UseLargePages",
)
_NAMESRV_COMMAND = (
    *(str(BIN / "namesrv"), "serve", "--listen", "127.0.0.1:0"),
    *("--log-format", "json", "--warm-up-millis", "0"),
)
_STARTED = {NAIVE: "naive_started", NULL: "null_started", NULL_REMOTING: "null_started"}
_JAVA_MAIN = "org.apache.rocketmq.namesrv.NamesrvStartup"
_SHOWN_CHARACTERS = 500
_SETTLED_ANSWERS = 20
"""Equal answers, a hundredth of a second and more apart, after which nobody is expected to leave."""
OWN_SERVERS = (NATIVE, NATIVE + TLS)
"""This name server, plain and with TLS."""


def all_servers() -> list[str]:
    """Names of everything that is measured if nothing is said."""
    return [*OWN_SERVERS, NAMESRV_REMOTING, NAIVE, JAVA, RUST, NULL, NULL_REMOTING]


def askable_servers() -> list[str]:
    """Names of everything that can be asked for."""
    return [*all_servers(), *(NATIVE + name for name in VARIANTS)]


class Server(Process):
    """A running server. Its table is empty."""

    def __init__(self, name: str, cores: str | None) -> None:
        """Starts it, on the given cores only.

        Raises:
            Missing: A tool that it needs is not there.
            RecipeFailed: It cannot be built, or does not start.
        """
        self.name = name
        self.tls_ca: Path | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._speaks_remoting = name in {JAVA, RUST, NULL_REMOTING, NAMESRV_REMOTING}
        self.language: Language = Remoting() if self._speaks_remoting else Grpc()
        port = _free_port()
        self._log = Path(self._folder.name) / "said"
        # What a program says on standard output belongs to what it says, not to our report. RocketMQ's say much, and
        # would wait for us to read it: they write to a file, as they do where they are at home.
        says = f'exec "$@" >{shlex.quote(str(self._log))} 2>&1' if name in {JAVA, RUST} else 'exec "$@" 1>&2'
        super().__init__([*pinned(cores), "sh", "-c", says, "sh", *self._command(port)], self._environment())
        try:
            self.target = self._wait_until_it_serves(port)
        except AssertionError as error:
            self.__exit__()
            raise RecipeFailed(f"it does not start: {str(error)[-_SHOWN_CHARACTERS:]}") from None
        except BaseException:
            self.__exit__()
            raise

    @property
    def protocol(self) -> str:
        """Name of the protocol that it speaks."""
        return "remoting" if self._speaks_remoting else "grpc"

    def pids(self) -> list[int]:
        """All its processes."""
        found = [self._popen.pid]
        for pid in found:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
        return found

    def settle(self) -> None:
        """Waits until nobody leaves any more whose connection has ended, on servers that remove these.

        RocketMQ's does so some time after the connection's end, even to a broker that has registered again meanwhile
        (apache/rocketmq issue 11043): a table that is filled at once would have holes.
        """
        if self.name not in {JAVA, RUST, NAMESRV_REMOTING}:
            return
        host, _, port = self.target.partition(":")
        request = remoting.frame(remoting.GET_BROKER_CLUSTER_INFO, {})
        sizes: list[int] = []

        def has_settled() -> bool:
            sizes.append(len(remoting.ask(host, int(port), request)))
            return len(sizes) >= _SETTLED_ANSWERS and len(set(sizes[-_SETTLED_ANSWERS:])) == 1

        eventually(has_settled)

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        self._folder.cleanup()

    def _command(self, port: int) -> list[str]:
        if self.name == NAIVE:
            return [sys.executable, "-m", "bench.naive_server"]
        if self.name == JAVA:
            return _java_command(Path(self._folder.name), port)
        if self.name == RUST:
            return _rust_command(Path(self._folder.name), port)
        if self.name in {NULL, NULL_REMOTING}:
            return [str(program()), "null", self.protocol]
        if self.name == NAMESRV_REMOTING:
            # Between two runs everybody leaves, which is no loss to be held up.
            return [*_NAMESRV_COMMAND, *_FRONT, "--mass-loss-percent", "100"]
        _, plus, variant = self.name.partition("+")
        return [*_NAMESRV_COMMAND, *VARIANTS.get(plus + variant, ()), *self._tls_options()]

    def _tls_options(self) -> list[str]:
        if not self.name.endswith(TLS):
            return []
        authority = Authority(Path(self._folder.name))
        files = authority.sign("namesrv", dns=["localhost"], ips=["127.0.0.1"])
        self.tls_ca = authority.path
        return ["--tls-cert", str(files.certificate), "--tls-key", str(files.key)]

    def _environment(self) -> dict[str, str]:
        """Where RocketMQ's name servers put their files."""
        return {"ROCKETMQ_HOME": self._folder.name, "HOME": self._folder.name} if self._speaks_remoting else {}

    def _wait_until_it_serves(self, port: int) -> str:
        if self.name in {JAVA, RUST}:
            eventually(lambda: self._popen.poll() is not None or _listens(port), within_seconds=60)
            assert self._popen.poll() is None, f"{self.name} ended:\n{self._log.read_text()}"
            return f"127.0.0.1:{port}"
        where = "remoting" if self.name == NAMESRV_REMOTING else "listen"
        return str(self.wait_for(_STARTED.get(self.name, "namesrv_started"))[where])


def _java_command(folder: Path, port: int) -> list[str]:
    java, jars = _java()
    config = folder / "namesrv.properties"
    config.write_text(f"bindAddress=127.0.0.1\nlistenPort={port}\n")
    return [java, *_JAVA_OPTIONS, f"-Duser.home={folder}", "-cp", f"{jars}/*", _JAVA_MAIN, "-c", str(config)]


@cache
def _java() -> tuple[str, Path]:
    """The Java runtime, and the folder of RocketMQ's jars."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None:
        raise Missing("java", "runs Apache RocketMQ's name server; any from 8 on")
    jars = CACHE / "java-namesrv"
    if not jars.exists():
        if maven is None:
            raise Missing("mvn", "fetches Apache RocketMQ's name server; get Apache Maven")
        options = ["--batch-mode", "--quiet", "--no-transfer-progress", f"-Dlib.folder={jars}"]
        run_recipe("Apache RocketMQ's name server", [maven, *options, "--file", str(_JAVA_POM), "package"])
    return java, jars


def _rust_command(folder: Path, port: int) -> list[str]:
    options = ["--bindAddress", "127.0.0.1", "--listenPort", str(port), "--rocketmqHome", str(folder)]
    return [str(_rust()), *options, "--kvConfigPath", str(folder / "kvConfig.json")]


@cache
def _rust() -> Path:
    """RocketMQ's name server as written anew in Rust."""
    root = CACHE / "rust-namesrv"
    program = root / "bin" / "rocketmq-namesrv-rust"
    if not program.exists():
        cargo = shutil.which("cargo")
        if cargo is None:
            raise Missing("cargo", "compiles rocketmq-rust's name server; get it from rustup.rs")
        crate = ["rocketmq-namesrv", "--version", RUST_VERSION, "--locked", "--root", str(root)]
        run_recipe("rocketmq-rust's name server", [cargo, "install", "--quiet", *crate])
    return program


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(1)
        return connection.connect_ex(("127.0.0.1", port)) == 0


def server_cores(pin: bool) -> tuple[str | None, str | None]:
    """The cores of a server and of its load: one for it and the others for the load, or all for both."""
    cores = sorted(os.sched_getaffinity(0))
    if not pin or len(cores) == 1:
        return None, None
    return str(cores[0]), ",".join(map(str, cores[1:]))


def turned(servers: Sequence[ItemT], number: int) -> list[ItemT]:
    """The servers in their order of a round: each round begins with another one."""
    start = (number - 1) % len(servers)
    return [*servers[start:], *servers[:start]]


def described(name: str) -> str:
    """What a server is, with its version."""
    texts = {
        NAIVE: f"synchronous grpcio {version('grpcio')}, 8 threads, dictionaries, generated code",
        JAVA: f"Apache RocketMQ {JAVA_VERSION}: {' '.join(_JAVA_OPTIONS)}",
        RUST: f"rocketmq-namesrv {RUST_VERSION} from crates.io, release build",
        NAMESRV_REMOTING: "namesrv serve --remoting-listen, over RocketMQ's own protocol",
        NULL: "answers without meaning, over gRPC",
        NULL_REMOTING: "answers without meaning, over the remoting protocol",
    }
    _, plus, variant = name.partition("+")
    options = " ".join(VARIANTS.get(plus + variant, ()))
    return texts.get(name, f"namesrv serve {options}".strip() + " with TLS" * name.endswith(TLS))
