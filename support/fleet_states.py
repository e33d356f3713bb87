"""Fleets in the states that an operator meets: each a context in which the state lasts."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.files.failpoints import VARIABLE
from support.certificates import DAY
from support.programs.agents import Agent
from support.programs.processes import Client, NamesrvProcess, eventually
from support.registrations import identity, register, registration
from support.secured import Place

BROKER, TOPIC = "broker-a", "TopicTest"
STATUS = pb.GetNamesrvStatusRequest()
TWO_DAYS_MILLIS = 2 * 86_400_000


@dataclass(frozen=True)
class Scene:
    """What an operator needs to look at a fleet."""

    namesrv: str
    """The list of name servers."""
    public: Mapping[str, str]
    """Addresses of this run, each with the one that a page shows."""
    agent: str = "127.0.0.1:1"
    flags: tuple[str, ...] = ()
    """Of nsctl."""

    def command(self, text: str) -> str:
        """A command of the runbook with what its words in capitals stand for here."""
        words = {"BROKER": BROKER, "TOPIC": TOPIC, "AGENT": self.agent}
        return re.sub("|".join(rf"\b{word}\b" for word in words), lambda found: words[found[0]], text)


@contextmanager
def _two(folder: Path, second: tuple[str, ...] = ()) -> Iterator[list[NamesrvProcess]]:
    with (
        NamesrvProcess("--name", "ns-a", "--data-dir", str(folder / "a")) as one,
        NamesrvProcess("--name", "ns-b", "--data-dir", str(folder / "b"), *second) as two,
    ):
        yield [one, two]


def _scene(servers: list[NamesrvProcess], agent: Agent | None = None, flags: tuple[str, ...] = ()) -> Scene:
    public = {str(server.endpoint): f"ns-{letter}:9876" for server, letter in zip(servers, "abc", strict=False)}
    if agent is not None:
        public[str(agent.endpoint)] = "agent-a2:10918"
    address = "127.0.0.1:1" if agent is None else str(agent.endpoint)
    return Scene(";".join(str(server.endpoint) for server in servers), public, address, flags)


@contextmanager
def _agent(servers: list[NamesrvProcess], broker_id: int = 0) -> Iterator[Agent]:
    """An agent whose broker every name server has."""
    names = ";".join(str(server.endpoint) for server in servers)
    with Agent(names, broker_id=broker_id, broker_addr=f"127.0.0.1:{10911 + broker_id}") as agent:
        eventually(lambda: agent.events("registered"), lambda told: len(told) == len(servers))
        yield agent


def _status(server: NamesrvProcess) -> pb.GetNamesrvStatusResponse:
    with server.connect() as client:
        return client.routes.GetNamesrvStatus(STATUS, timeout=Client.TIMEOUT)


@contextmanager
def healthy(folder: Path) -> Iterator[Scene]:
    """Two name servers and a broker."""
    with _two(folder) as servers, _agent(servers):
        yield _scene(servers)


@contextmanager
def master_killed(folder: Path) -> Iterator[Scene]:
    """The master's agent is killed, and its slave is left."""
    with _two(folder) as servers, _agent(servers) as master, _agent(servers, 1) as slave:
        master.kill()
        for server in servers:
            with server.connect() as client:
                eventually(lambda client=client: client.addrs(), lambda left: left.keys() == {1})  # type: ignore[misc]
        yield _scene(servers, slave)


@contextmanager
def master_back(folder: Path) -> Iterator[Scene]:
    """The master's agent was killed, and runs again."""
    with _two(folder) as servers:
        with _agent(servers) as killed:
            killed.kill()
            for server in servers:
                with server.connect() as client:
                    eventually(lambda client=client: client.route() is None)  # type: ignore[misc]
        with _agent(servers):
            yield _scene(servers)


@contextmanager
def drained_and_forgotten(folder: Path) -> Iterator[Scene]:
    """A broker was drained two days ago, and a topic is held back since a moment ago."""
    now_millis = time.time_ns() // 1_000_000
    drain = {"kind": "WIPE_WRITE_PERM", "cluster_name": "DefaultCluster", "broker_name": BROKER}
    hold = {"kind": "TOPIC_HOLD", "topic": "Old", "cluster_name": None}
    intents = [
        drain | {"caller": "alice", "since_millis": now_millis - TWO_DAYS_MILLIS, "comment": "new disks"},
        hold | {"caller": "bob", "since_millis": now_millis, "comment": "legal hold"},
    ]
    content = {"version": 1, "intents": [intent | {"ends_at_millis": None} for intent in intents]}
    for place in ("a", "b"):
        (folder / place).mkdir()
        (folder / place / "intents.json").write_text(json.dumps(content))
    with _two(folder) as servers, _agent(servers):
        yield _scene(servers)


@contextmanager
def disk_full(folder: Path) -> Iterator[Scene]:
    """The disk of one of two name servers takes nothing more."""
    (faults := folder / "faults").touch()
    flags = ("--data-dir", str(folder / "a"), "--snapshot-interval-millis", "50")
    with (
        NamesrvProcess("--name", "ns-a", *flags, environment={VARIABLE: str(faults)}) as full,
        NamesrvProcess("--name", "ns-b", "--data-dir", str(folder / "b")) as sound,
    ):
        faults.write_text("* write * = ENOSPC")
        with _agent([full, sound]):
            eventually(lambda: _status(full).data_dir_problem)
            yield _scene([full, sound])


@contextmanager
def certificate(folder: Path, *, ends: dt.timedelta) -> Iterator[Scene]:
    """A name server with TLS: its certificate was made for thirty days."""
    place = Place.make(folder)
    place.server = place.authority.sign("ns-a", ips=["127.0.0.1"], begins=ends - 30 * DAY, ends=ends)
    with NamesrvProcess("--name", "ns-a", *place.flags("TLS", with_permits=False)) as server:
        yield _scene([server], flags=("--tls-ca", str(place.authority.path)))


@contextmanager
def called_in_plain_text(folder: Path) -> Iterator[Scene]:
    """One name server with TLS, and an operator who does not know."""
    place = Place.make(folder)
    with NamesrvProcess("--name", "ns-a", *place.flags("TLS", with_permits=False)) as server:
        yield _scene([server])


@contextmanager
def disagreeing(folder: Path) -> Iterator[Scene]:
    """One name server is missing in an agent's list."""
    with _two(folder) as servers, _agent(servers[:1]):
        yield _scene(servers)


@contextmanager
def one_down(folder: Path) -> Iterator[Scene]:
    """One of two name servers was killed."""
    with _two(folder) as servers, _agent(servers):
        servers[1].kill()
        yield _scene(servers)


@contextmanager
def mass_loss(folder: Path) -> Iterator[Scene]:
    """One name server lost the channels of four of four brokers at once."""
    with NamesrvProcess("--name", "ns-a", "--data-dir", str(folder)) as server, ExitStack() as left:
        for number in range(4):
            client = left.enter_context(server.connect())
            channel = client.open_channel()
            register(client, TOPIC, name=f"broker-{number}", port=10911 + number, channel_id=channel.id)
        left.close()
        eventually(lambda: _status(server).guard_tripped)
        yield _scene([server])


@contextmanager
def warming(folder: Path) -> Iterator[Scene]:
    """A name server that was started for the first time a moment ago."""
    with NamesrvProcess("--name", "ns-a", "--data-dir", str(folder), "--warm-up-millis", "600000") as server:
        yield _scene([server])


@contextmanager
def restarted(folder: Path) -> Iterator[Scene]:
    """A name server was restarted, and the brokers of its snapshot file have not registered since."""
    flags = ("--name", "ns-a", "--data-dir", str(folder))
    with NamesrvProcess(*flags) as server:
        with server.connect() as client:
            register(client, TOPIC)
        assert server.terminate() == 0
    with NamesrvProcess(*flags) as server:
        yield _scene([server])


@contextmanager
def leader_lost(_folder: Path) -> Iterator[Scene]:
    """A read-only copy whose leader was killed."""
    with (
        NamesrvProcess("--name", "ns-a") as leader,
        _agent([leader]),
        NamesrvProcess("--name", "copy-a", "--follow", str(leader.endpoint)) as copy,
    ):
        eventually(lambda: _status(copy).replica.HasField("behind_millis"))  # it has what the leader has
        leader.kill()
        eventually(lambda: not _status(copy).replica.leader_connected)
        yield Scene(str(copy.endpoint), {str(copy.endpoint): "copy-a:9876", str(leader.endpoint): "ns-a:9876"})


@contextmanager
def names_given_twice(folder: Path) -> Iterator[Scene]:
    """Two name servers of one name, two groups of one name, and both registered without a channel."""
    with _two(folder, second=("--name", "ns-a")) as servers:
        for server in servers:
            with server.connect() as client:
                for number, cluster in enumerate(("east", "west")):
                    broker = identity(f"127.0.0.1:{10911 + number}", cluster=cluster)
                    client.registration.RegisterBroker(registration((TOPIC,), broker), timeout=Client.TIMEOUT)
        yield _scene(servers)


@dataclass(frozen=True)
class State:
    """A state, and what the doctor calls it."""

    title: str
    codes: tuple[str, ...]
    """Of the doctor's findings, those that this state is about."""
    enter: Callable[[Path], AbstractContextManager[Scene]]


STATES = (
    State("Healthy", (), healthy),
    State("A master was killed", ("BROKER_LOST", "GROUP_WITHOUT_MASTER", "TOPICS_NOT_WRITABLE"), master_killed),
    State("The master is back", ("BROKER_CAME_BACK",), master_back),
    State("Drained and forgotten", ("DECISION_FORGOTTEN", "DECISION_IN_FORCE"), drained_and_forgotten),
    State("A disk is full", ("DATA_DIR_NOT_WRITTEN",), disk_full),
    State("A certificate has ended", ("CERTIFICATE_ENDED",), partial(certificate, ends=-DAY)),
    State("A certificate ends soon", ("CERTIFICATE_ENDS_SOON",), partial(certificate, ends=5 * DAY)),
    State("Plain text to a TLS port", ("TLS_REFUSED",), called_in_plain_text),
    State("Name servers disagree", ("NAME_SERVERS_DISAGREE",), disagreeing),
    State("A name server is down", ("UNREACHABLE",), one_down),
    State("Many brokers were lost at once", ("GUARD_HOLDS_BROKERS",), mass_loss),
    State("Just started", ("WARMING",), warming),
    State("Restarted, and brokers have not come back", ("BROKERS_UNCONFIRMED",), restarted),
    State("A copy has lost its leader", ("LEADER_LOST",), leader_lost),
    State(
        "Names are given twice",
        ("SAME_NAME_TWICE", "GROUP_NAME_TWICE", "BROKER_WITHOUT_CHANNEL"),
        names_given_twice,
    ),
)
