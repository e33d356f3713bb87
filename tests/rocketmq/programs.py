"""RocketMQ's own programs, from Maven Central: brokers, mqadmin, and a producer with a consumer."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Self

import pytest

from support.processes import eventually

FOLDER = Path(__file__).parent / "java"
CACHE = Path(__file__).parent.parent.parent / ".bench"
VERSIONS = ("5.5.0",)

_FETCH_SECONDS = 600.0
_START_SECONDS = 90.0
_CALL_SECONDS = 90.0
_MEMORY = ("-Xms128m", "-Xmx384m", "-XX:MaxDirectMemorySize=256m", "-XX:-UseLargePages", "-XX:+UseSerialGC")


def java() -> str:
    """The Java runtime; without one, or without Maven, the test is skipped by name."""
    for tool, why in (("java", "runs RocketMQ"), ("mvn", "fetches RocketMQ from Maven Central")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing: it {why}")
    return "java"


@cache
def jars(version: str) -> Path:
    """The folder with RocketMQ's jars of a version; fetched once."""
    folder = CACHE / f"rocketmq-{version}"
    if not folder.exists():
        fetched = folder.with_suffix(".part")
        shutil.rmtree(fetched, ignore_errors=True)
        options = ["--batch-mode", "--quiet", "--no-transfer-progress", f"-Drocketmq.version={version}"]
        command = ["mvn", *options, f"-Dlib.folder={fetched}", "--file", str(FOLDER / "pom.xml"), "package"]
        subprocess.run(command, check=True, timeout=_FETCH_SECONDS)
        fetched.rename(folder)
    return folder


def command(version: str, home: Path, main: str, *arguments: str) -> list[str]:
    """A command that runs one of RocketMQ's programs."""
    places = [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    return [java(), *_MEMORY, *places, "-cp", f"{jars(version)}/*", main, *arguments]


def mqadmin(home: Path, *arguments: str, version: str = VERSIONS[0]) -> str:
    """Runs mqadmin; returns what it says."""
    program = command(version, home, "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments)
    done = subprocess.run(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_CALL_SECONDS, check=False
    )
    return done.stdout


def send_and_receive(home: Path, namesrv: str, topic: str, count: int, version: str = VERSIONS[0]) -> str:
    """Sends messages and receives them all, or fails; returns what the program says."""
    program = command(version, home, str(FOLDER / "Messages.java"), namesrv, topic, str(count))
    done = subprocess.run(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * _CALL_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    return done.stdout


class Broker:
    """A broker of RocketMQ on loopback."""

    def __init__(
        self,
        home: Path,
        namesrv: str,
        name: str = "broker-a",
        broker_id: int = 0,
        *,
        version: str = VERSIONS[0],
        settings: Sequence[str] = (),
    ) -> None:
        """Starts it; ``wait`` until it serves."""
        self.port = _free_ports()
        self.addr = f"127.0.0.1:{self.port}"
        store = home / f"{name}-{broker_id}"
        store.mkdir(parents=True)
        role = "ASYNC_MASTER" if broker_id == 0 else "SLAVE"
        config = store / "broker.conf"
        lines = [
            f"namesrvAddr={namesrv}",
            "brokerClusterName=DefaultCluster",
            f"brokerName={name}",
            f"brokerId={broker_id}",
            f"brokerRole={role}",
            "brokerIP1=127.0.0.1",
            "brokerIP2=127.0.0.1",
            f"listenPort={self.port}",
            f"haListenPort={self.port + 1}",
            f"storePathRootDir={store}/store",
            f"storePathCommitLog={store}/store/commitlog",
            "mappedFileSizeCommitLog=16777216",
            "mappedFileSizeConsumeQueue=60000",
            "diskMaxUsedSpaceRatio=98",
            *settings,
        ]
        config.write_text("\n".join(lines) + "\n")
        self._log = (store / "said").open("w")
        main = "org.apache.rocketmq.broker.BrokerStartup"
        self._popen = subprocess.Popen(
            command(version, store, main, "-c", str(config)),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ROCKETMQ_HOME": str(store), "HOME": str(store)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait(20)
        self._log.close()

    def wait(self) -> Self:
        """Waits until it takes connections."""
        eventually(self._listens, within_seconds=_START_SECONDS)
        return self

    def kill(self) -> None:
        """Kills it, as a crash would."""
        self._popen.send_signal(signal.SIGKILL)
        self._popen.wait(20)

    def terminate(self) -> None:
        """Asks it to end, and waits."""
        self._popen.terminate()
        self._popen.wait(60)

    def _listens(self) -> bool:
        assert self._popen.poll() is None, f"the broker ended: {Path(self._log.name).read_text()[-4_000:]}"
        with socket.socket() as connection:
            connection.settimeout(1)
            return connection.connect_ex(("127.0.0.1", self.port)) == 0


def _free_ports() -> int:
    """A port that is free, together with the one above and the one two below."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
            try:
                for other in (port + 1, port - 2):
                    socket.create_server(("127.0.0.1", other)).close()
            except (OSError, OverflowError):
                continue
            return port
