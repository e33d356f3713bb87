"""One fleet for most tests: a name server of ours and Apache's own, and at both a broker of 5.5.0 and one of 4.9.7."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.rocketmq_programs.maven import NEWEST, OLD, class_path, missing
from tests.support.rocketmq_programs.programs import ApacheNamesrv, Broker, Shell

ALLOWED = ("--remoting-listen", "127.0.0.1:0", "--remoting-allow", "lookups,registrations,operators,settings")
REGISTERED_SECONDS = 180.0
"""The slowest answer of a busy machine. A broker registers every ten seconds."""
IN_PARTS = ("enableSplitRegistration=true", "splitRegistrationSize=3", "enableSingleTopicRegister=true")


class Running(NamedTuple):
    """What runs."""

    namesrv: NamesrvProcess
    ours: str
    """Its address for RocketMQ."""
    apache: str
    new: Broker
    """broker-a, of 5.5.0."""
    old: Broker
    """broker-b, of 4.9.7."""


class Pair:
    """Two name servers of this project. Each can be replaced by another at the same place."""

    def __init__(self, home: Path) -> None:
        """Starts both."""
        self._home = home
        self.processes = [self._start(number, "127.0.0.1:0") for number in range(2)]
        self.addresses = [address_of(process) for process in self.processes]

    @property
    def both(self) -> str:
        """Both addresses, as RocketMQ's programs are notified of them."""
        return ";".join(self.addresses)

    def restart(self, number: int, *, forgets: bool = False) -> None:
        """Ends one in an orderly way and starts it again; what it kept is there then, unless it forgets."""
        assert self.processes[number].terminate() == 0
        self.processes[number].__exit__()
        if forgets:
            self._home = self._home / "forgotten"
        self.processes[number] = self._start(number, self.addresses[number])

    def close(self) -> None:
        """Ends both."""
        for process in self.processes:
            process.__exit__()

    def _start(self, number: int, address: str) -> NamesrvProcess:
        folder = self._home / f"data-{number}"
        return NamesrvProcess(*ALLOWED, "--remoting-listen", address, "--data-dir", str(folder))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for homes of RocketMQ's programs, which are there."""
    problem = missing()
    if problem is not None:
        pytest.skip(problem)
    for release in (NEWEST, OLD):
        class_path(release)
    return tmp_path_factory.mktemp("rocketmq")


@pytest.fixture(scope="session")
def shell(home: Path) -> Iterator[Shell]:
    """Clients and mqadmin of 5.5.0."""
    with Shell(home / "shell") as process:
        yield process


@pytest.fixture(scope="session")
def old_shell(home: Path) -> Iterator[Shell]:
    """Clients and mqadmin of 4.9.7."""
    with Shell(home / "old-shell", release=OLD) as process:
        yield process


@pytest.fixture(scope="session")
def fleet(home: Path) -> Iterator[Running]:
    """Both name servers with both brokers."""
    with (
        NamesrvProcess(*ALLOWED, "--data-dir", str(home / "fleet-data")) as namesrv,
        ApacheNamesrv(home / "apache") as apache,
        namesrv.connect() as client,
    ):
        ours = address_of(namesrv)
        both = f"{ours};{apache.listening().addr}"
        with Broker(home, both) as new, Broker(home, both, "broker-b", release=OLD) as old:
            for broker, name in ((new, "broker-a"), (old, "broker-b")):
                wait_until_registered(client, broker.listening(), name)
            yield Running(namesrv, ours, apache.addr, new, old)
        assert namesrv.events("internal_defect") == []
        assert namesrv.events("topics_skipped") == []


@pytest.fixture(scope="session")
def pair(home: Path) -> Iterator[Pair]:
    """Two name servers of ours with one broker, of 5.5.0."""
    with contextlib.closing(Pair(home / "pair")) as servers:
        yield servers
        for namesrv in servers.processes:
            assert namesrv.events("internal_defect") == []


@pytest.fixture(scope="session")
def other_apache(home: Path) -> Iterator[ApacheNamesrv]:
    """Apache's own, for the broker of the pair."""
    with ApacheNamesrv(home / "apache-of-pair") as process:
        process.listening()
        yield process


@pytest.fixture(scope="session")
def broker(pair: Pair, other_apache: ApacheNamesrv, home: Path) -> Iterator[Broker]:
    """A broker that registers its topics three at a time, and a new topic alone."""
    with Broker(home, f"{pair.both};{other_apache.addr}", "broker-c", settings=IN_PARTS) as process:
        process.listening()
        for namesrv in pair.processes:
            with namesrv.connect() as client:
                wait_until_registered(client, process, "broker-c")
        yield process


def address_of(namesrv: NamesrvProcess) -> str:
    """Where a name server of ours speaks RocketMQ's protocol."""
    return str(namesrv.wait_for("namesrv_started")["remoting"])


def wait_until_registered(client: Client, broker: Broker, name: str, broker_id: int = 0) -> None:
    """Waits until a broker is there. The topic with a broker's name is one that each of them has."""
    eventually(lambda: client.addrs(name).get(broker_id), lambda addr: addr == broker.addr, REGISTERED_SECONDS)


def groups_of(client: Client, topic: str) -> set[str]:
    """The names of the broker groups that have a topic."""
    route = client.route(topic)
    return set() if route is None else {group.broker_name for group in route.broker_datas}
