"""RocketMQ's programs as processes on loopback, each with a home of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.programs.processes import Process, eventually, listens, unused_port
from tests.support.rocketmq_programs.maven import NEWEST, Release, class_path

_START_SECONDS = 180.0
_END_SECONDS = 60.0
_OPTIONS = (
    *("-Xms64m", "-Xmx384m", "-XX:MaxDirectMemorySize=256m", "-XX:-UseLargePages", "-XX:+UseSerialGC"),
    # These processes live for a minute: better code would cost more than it saves.
    "-XX:TieredStopAtLevel=1",
)
_CALM = (
    # Each second a broker of 5.5.0 compares two copies of its wheel of timers byte by byte: a quarter of a core.
    "timerFlushIntervalMs=60000",
    # Before it first writes how many transactions there are, it asks for the time without a pause, ten seconds long.
    "transactionMetricFlushInterval=500",
)
"""Settings that keep an idle broker idle."""
_SHOWN_CHARACTERS = 4_000
_TRIES = 3
_PLAIN = {"tls.server.mode": "disabled"}
"""Else each listener makes itself a certificate as it starts, which is more than half of a start's processor time."""

Properties = Mapping[str, str]
"""System properties of Java."""


def topics_file_of(home: Path) -> Path:
    """Where a broker with this home keeps its topics: it reads them as it starts."""
    return home / "store/config/topics.json"


class JavaProgram(Process):
    """A program of RocketMQ. The test that starts it ends it."""

    host = "127.0.0.1"
    port = 0
    """Where it takes connections; 0 if it takes none."""

    def __init__(
        self,
        main: str,
        home: Path,
        *arguments: str,
        release: Release = NEWEST,
        properties: Properties | None = None,
        pipes: bool = False,
    ) -> None:
        """Starts it, with what it looks for in its home; ``listening`` when it serves."""
        (home / "conf").mkdir(parents=True, exist_ok=True)
        logs = [home / "conf" / f"logback_{program}.xml" for program in ("broker", "namesrv", "tools")]
        for file in logs:  # 4.9 needs these files. An empty configuration disables logs.
            file.write_text("<configuration/>")
        # Without this, 5 begins with a configuration of dozens of logs, which takes it half a second.
        given = {"rmq.logback.configurationFile": logs[0].as_uri()}
        given |= {"user.home": str(home), "rocketmq.home.dir": str(home), **(properties or {})}
        places = [f"-D{name}={value}" for name, value in given.items()]
        # What it prints goes to standard error, as what our programs say.
        shell = () if pipes else ("sh", "-c", 'exec "$@" >&2', "sh")
        command = [*shell, "java", *_OPTIONS, *places, "-cp", class_path(release), main, *arguments]
        environment = {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home), "HOME": str(home)}
        super().__init__(command, environment, pipes=pipes)

    @property
    def addr(self) -> str:
        """Where it takes connections."""
        return f"{self.host}:{self.port}"

    def listening(self) -> Self:
        """Waits until it takes connections."""
        eventually(self._listens, within_seconds=_START_SECONDS)
        return self

    def terminate(self, within_seconds: float = _END_SECONDS) -> int:
        """Asks it to end, and waits. It may take its time."""
        return super().terminate(within_seconds)

    def _listens(self) -> bool:
        assert self._popen.poll() is None, f"it has ended: {self.raw[-_SHOWN_CHARACTERS:]}"
        return listens(self.port, self.host)


class Broker(JavaProgram):
    """A broker."""

    def __init__(
        self,
        home: Path,
        namesrv: str,
        name: str = "broker-a",
        broker_id: int = 0,
        *,
        release: Release = NEWEST,
        settings: Sequence[str] = (),
        properties: Properties | None = None,
        port: int = 0,
    ) -> None:
        """Starts it.

        Args:
            home: A folder in which it makes its own.
            namesrv: The name servers, ``HOST:PORT;HOST:PORT``.
            name: Of its group.
            broker_id: 0 for the master.
            release: RocketMQ's.
            settings: Lines of broker.conf, which win.
            properties: System properties of Java. With none it has no TLS.
            port: Where it takes connections. 0 takes any free port. It takes the one above and the one two below, too.
        """
        self.port = port or unused_port()
        own = home / f"{name}-{broker_id}"
        own.mkdir(parents=True, exist_ok=True)
        self.topics_file = topics_file_of(own)
        lines = [
            f"namesrvAddr={namesrv}",
            "brokerClusterName=DefaultCluster",
            f"brokerName={name}",
            f"brokerId={broker_id}",
            f"brokerRole={'SLAVE' if broker_id else 'ASYNC_MASTER'}",
            "brokerIP1=127.0.0.1",
            "brokerIP2=127.0.0.1",
            f"listenPort={self.port}",
            f"haListenPort={self.port + 1}",
            f"storePathRootDir={own}/store",
            f"storePathCommitLog={own}/store/commitlog",
            "mappedFileSizeCommitLog=16777216",
            "mappedFileSizeConsumeQueue=60000",
            "diskMaxUsedSpaceRatio=98",
            "registerNameServerPeriod=10000",
            *_CALM,
            *settings,
        ]
        config = own / "broker.conf"
        config.write_text("\n".join(lines) + "\n")
        main = "org.apache.rocketmq.broker.BrokerStartup"
        super().__init__(main, own, "-c", str(config), release=release, properties=properties or _PLAIN)


class ApacheNamesrv(JavaProgram):
    """Apache's own name server."""

    def __init__(self, home: Path, *, host: str = "127.0.0.1", port: int = 0, release: Release = NEWEST) -> None:
        """Starts it at a host of loopback, at a port or anywhere. It reads the file ``kvConfig.json`` of its home."""
        self.host, self.port = host, port or unused_port()
        home.mkdir(parents=True, exist_ok=True)
        config = home / "namesrv.conf"
        config.write_text(f"bindAddress={host}\nlistenPort={self.port}\nkvConfigPath={home}/kvConfig.json\n")
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        super().__init__(main, home, "-c", str(config), release=release, properties=_PLAIN)


class Proxy(JavaProgram):
    """RocketMQ 5's proxy in cluster mode. Its clients speak gRPC."""

    def __init__(self, home: Path, namesrv: str) -> None:
        """Starts it."""
        self.port = unused_port()
        home.mkdir(parents=True)
        config = home / "proxy.json"
        config.write_text(
            f'{{"rocketMQClusterName": "DefaultCluster", "proxyMode": "CLUSTER", "namesrvAddr": "{namesrv}",'
            f' "grpcServerPort": {self.port}, "remotingListenPort": {unused_port()}, "localServeAddr": "127.0.0.1"}}'
        )
        super().__init__("org.apache.rocketmq.proxy.ProxyStartup", home, "-pc", str(config))


class Shell(JavaProgram):
    """A process that runs mqadmin, producers and consumers, one call after the other."""

    def __init__(self, home: Path, *, release: Release = NEWEST, properties: Properties | None = None) -> None:
        """Starts it."""
        super().__init__("Shell", home, release=release, properties=properties, pipes=True)

    def mqadmin(self, namesrv: str, command: str, *arguments: str) -> str:
        """Runs a command of mqadmin; returns what it says, also of an error. It is asked again if it had no answer."""
        said = ""
        # It waits five seconds for an answer, and a broker that makes a topic first tells every name server of it.
        for _ in range(_TRIES):
            said = self.run("org.apache.rocketmq.tools.command.MQAdminStartup", command, "-n", namesrv, *arguments)[1]
            if "RemotingTimeoutException" not in said:
                break
        return said

    def messages(self, *arguments: str) -> str:
        """Runs ``Messages``; returns what it says. Raises AssertionError if it fails."""
        return self._succeeded("Messages", *arguments)

    def grpc_messages(self, *arguments: str) -> str:
        """Runs ``GrpcMessages``; returns what it says. Raises AssertionError if it fails."""
        return self._succeeded("GrpcMessages", *arguments)

    def run(self, main: str, *arguments: str) -> tuple[bool, str]:
        """Runs a class; returns whether it succeeded, and its output."""
        commands, answers = self.pipes
        commands.write("\t".join((main, *arguments)) + "\n")
        commands.flush()
        output = answers.buffer  # the length of an answer is in bytes
        answer = output.readline().split()
        assert answer, f"it has ended: {self.raw[-_SHOWN_CHARACTERS:]}"
        return answer[0] == b"0", output.read(int(answer[1])).decode(errors="replace")

    def _succeeded(self, main: str, *arguments: str) -> str:
        succeeded, said = self.run(main, *arguments)
        assert succeeded, said[:_SHOWN_CHARACTERS]
        return said
