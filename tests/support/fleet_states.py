"""Fleets in the states that an operator meets: each a context in which the state lasts."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKind, IntentTable
from namesrv.storage.database import Database
from namesrv.storage.tables import INTENTS
from tests.support import failpoints
from tests.support import odd_fleet_states as odd
from tests.support.programs.agents import Agent, free_port
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, register, registration
from tests.support.scenes import BROKER, TOPIC, Scene, registered_agent, scene_of, status_of, two_name_servers
from tests.support.secured.certificates import DAY
from tests.support.secured.fleet import Place

TWO_DAYS_MILLIS = 2 * 86_400_000


@contextmanager
def healthy(folder: Path) -> Iterator[Scene]:
    """Two name servers and a broker."""
    with two_name_servers(folder) as servers, registered_agent(servers):
        yield scene_of(servers)


@contextmanager
def master_killed(folder: Path) -> Iterator[Scene]:
    """The master's agent is killed, and its slave is left."""
    with (
        two_name_servers(folder) as servers,
        registered_agent(servers) as master,
        registered_agent(servers, 1) as slave,
    ):
        master.kill()
        for server in servers:
            with server.connect() as client:
                eventually(lambda client=client: client.addrs(), lambda left: left.keys() == {1})  # type: ignore[misc]
        yield scene_of(servers, slave)


@contextmanager
def master_back(folder: Path) -> Iterator[Scene]:
    """The master's agent was killed, and runs again."""
    with two_name_servers(folder) as servers:
        with registered_agent(servers) as killed:
            killed.kill()
            for server in servers:
                with server.connect() as client:
                    eventually(lambda client=client: client.route() is None)  # type: ignore[misc]
        with registered_agent(servers):
            yield scene_of(servers)


@contextmanager
def drained_and_forgotten(folder: Path) -> Iterator[Scene]:
    """A broker was drained two days ago, and a topic is held back since a moment ago."""
    now_millis = time.time_ns() // 1_000_000
    group, since = BrokerKey("DefaultCluster", BROKER), now_millis - TWO_DAYS_MILLIS
    intents = (
        Intent(IntentKind.WIPE_WRITE_PERM, group, "alice", since, "new disks"),
        Intent(IntentKind.TOPIC_HOLD, HoldKey("Old", None), "bob", now_millis, "legal hold"),
    )
    for place in ("a", "b"):
        (folder / place).mkdir()
        asyncio.run(_keep(folder / place, intents))
    with two_name_servers(folder) as servers, registered_agent(servers):
        yield scene_of(servers, words={"TOPIC": "Old"})


async def _keep(data_dir: Path, intents: Iterable[Intent]) -> None:
    """Makes a database that holds intents."""
    database = Database(data_dir)
    await database.replace(INTENTS, IntentTable.of(intents))
    await database.close(deadline_seconds=10.0)


@contextmanager
def disk_full(folder: Path) -> Iterator[Scene]:
    """The disk of one of two name servers takes nothing more."""
    (faults := folder / "faults").touch()
    flags = ("--data-dir", str(folder / "a"), "--snapshot-interval-millis", "50")
    with (
        NamesrvProcess("--name", "ns-a", *flags, environment=failpoints.environment(faults)) as full,
        NamesrvProcess("--name", "ns-b", "--data-dir", str(folder / "b")) as sound,
    ):
        faults.write_text("* write * = ENOSPC")
        with registered_agent([full, sound]):
            eventually(lambda: status_of(full).data_dir_problem, lambda problem: "database" in problem)
            yield scene_of([full, sound], words={"DATA_DIR": str(folder / "a")})


@contextmanager
def certificate(folder: Path, *, ends: dt.timedelta) -> Iterator[Scene]:
    """A name server with TLS: its certificate was made for thirty days."""
    place = Place.make(folder)
    place.server = place.authority.sign("ns-a", ips=["127.0.0.1"], begins=ends - 30 * DAY, ends=ends)
    with NamesrvProcess("--name", "ns-a", *place.flags("TLS", with_permits=False)) as server:
        yield scene_of([server], flags=("--tls-ca", str(place.authority.path)))


@contextmanager
def called_in_plain_text(folder: Path) -> Iterator[Scene]:
    """One name server with TLS, and an operator who does not know."""
    place = Place.make(folder)
    with NamesrvProcess("--name", "ns-a", *place.flags("TLS", with_permits=False)) as server:
        yield scene_of([server])


@contextmanager
def disagreeing(folder: Path) -> Iterator[Scene]:
    """One name server is missing in an agent's list."""
    with two_name_servers(folder) as servers, registered_agent(servers[:1]):
        yield scene_of(servers)


@contextmanager
def one_down(folder: Path) -> Iterator[Scene]:
    """One of two name servers was killed."""
    with two_name_servers(folder) as servers, registered_agent(servers) as agent, agent.connect() as client:
        servers[1].kill()
        lost = str(servers[1].endpoint)
        eventually(
            lambda: [one.endpoint for one in client.status().targets if not one.registered], lambda at: at == [lost]
        )
        yield scene_of(servers, agent)


@contextmanager
def mass_loss(folder: Path) -> Iterator[Scene]:
    """One name server lost the channels of five of five brokers at once."""
    with NamesrvProcess("--name", "ns-a", "--data-dir", str(folder)) as server, ExitStack() as left:
        for number in range(5):
            client = left.enter_context(server.connect())
            channel = client.open_channel()
            register(client, TOPIC, name=f"broker-{number}", port=10911 + number, channel_id=channel.id)
        left.close()
        eventually(lambda: status_of(server).guard_tripped)
        yield scene_of([server])


@contextmanager
def empty(folder: Path) -> Iterator[Scene]:
    """A name server that no broker knows."""
    with NamesrvProcess("--name", "ns-a", "--data-dir", str(folder), "--warm-up-millis", "0") as server:
        yield scene_of([server])


@contextmanager
def warming(folder: Path) -> Iterator[Scene]:
    """A name server that was started for the first time a moment ago."""
    with NamesrvProcess("--name", "ns-a", "--data-dir", str(folder), "--warm-up-millis", "600000") as server:
        yield scene_of([server])


@contextmanager
def restarted(folder: Path) -> Iterator[Scene]:
    """A name server was restarted, and is not in the list of the agent whose broker its snapshot file has."""
    flags = ("--name", "ns-a", "--data-dir", str(folder))
    with NamesrvProcess(*flags) as server:
        with server.connect() as client:
            register(client, TOPIC)
        assert server.terminate() == 0
    with NamesrvProcess(*flags) as server, free_port() as other, Agent(str(other)) as agent:
        scene = scene_of([server], agent)
        yield replace(scene, public={**scene.public, str(other): "ns-old:9876"})


@contextmanager
def names_given_twice(folder: Path) -> Iterator[Scene]:
    """Two name servers of one name, two groups of one name, and both registered without a channel."""
    with two_name_servers(folder, second=("--name", "ns-a")) as servers:
        for server in servers:
            with server.connect() as client:
                for number, cluster in enumerate(("east", "west")):
                    broker = identity(f"127.0.0.1:{10911 + number}", cluster=cluster)
                    client.registration.RegisterBroker(registration((TOPIC,), broker), timeout=Client.TIMEOUT)
        yield scene_of(servers)


@dataclass(frozen=True)
class State:
    """A state, what the doctor calls it, and which alerts are about it."""

    title: str
    codes: tuple[str, ...]
    """Of the doctor's findings, those that this state is about."""
    enter: Callable[[Path], AbstractContextManager[Scene]]
    alerts: tuple[str, ...] = ()

    @property
    def paragraphs(self) -> tuple[str, ...]:
        """The runbook's paragraphs about it."""
        return self.codes + self.alerts


STATES = (
    State("Healthy", (), healthy),
    State(
        "A master was killed",
        ("BROKER_LOST", "GROUP_WITHOUT_MASTER", "TOPICS_NOT_WRITABLE"),
        master_killed,
        ("NamesrvBrokersLost", "NamesrvGroupsWithoutMaster", "NamesrvTopicsNotWritable", "BrokerAgentDown"),
    ),
    State("The master is back", ("BROKER_CAME_BACK",), master_back),
    State("A broker was killed beside its agent", (), odd.broker_dead, ("BrokerAgentBrokerDown",)),
    State("A broker is silent", ("BROKER_SILENT",), odd.broker_silent),
    State("Drained and forgotten", ("INTENT_FORGOTTEN", "INTENT_IN_FORCE", "TOPICS_DRAINED"), drained_and_forgotten),
    State("Forgotten intents are lifted", (), drained_and_forgotten, ("NamesrvIntentForgotten",)),
    State(
        "A disk is full", ("DATA_DIR_NOT_WRITTEN",), disk_full, ("NamesrvDurableWritesRefused", "NamesrvSnapshotOld")
    ),
    State(
        "A certificate has ended",
        ("CERTIFICATE_ENDED",),
        partial(certificate, ends=-DAY),
        ("NamesrvCertificateEnded",),
    ),
    State("A certificate ends soon", ("CERTIFICATE_ENDS_SOON",), partial(certificate, ends=5 * DAY)),
    State("The certificate of an agent has ended", (), odd.agents_certificate_ended, ("BrokerAgentCertificateEnded",)),
    State("Plain text to a TLS port", ("TLS_REFUSED",), called_in_plain_text),
    State("A token with few permits", ("NOT_ALLOWED",), odd.few_permits),
    State("Name servers disagree", ("NAME_SERVERS_DISAGREE",), disagreeing, ("NamesrvDisagree",)),
    State(
        "A name server is down",
        ("UNREACHABLE",),
        one_down,
        ("NamesrvDown", "NamesrvFewLeft", "BrokerAgentRegistrationOld"),
    ),
    State("All name servers are down", (), odd.nowhere_registered, ("BrokerAgentNowhereRegistered",)),
    State("Many brokers were lost at once", ("GUARD_HOLDS_BROKERS",), mass_loss, ("NamesrvMassLossHeld",)),
    State("Just started", ("WARMING",), warming),
    State("Restarted, and brokers have not come back", ("BROKERS_UNCONFIRMED",), restarted, ("NamesrvNotWarm",)),
    State("A name server was held up", ("EVENT_LOOP_HELD_UP",), odd.held_up, ("NamesrvEventLoopHeldUp",)),
    State("No broker is registered", ("NO_BROKERS",), empty, ("NamesrvFleetEmpty",)),
    State(
        "A broker has an address that clients cannot call",
        ("BROKER_ADDRESS_LOCAL",),
        odd.address_local,
        ("NamesrvLocalBrokers",),
    ),
    State(
        "Registrations are refused",
        ("REGISTRATIONS_REFUSED", "TOPICS_SKIPPED"),
        odd.registrations_refused,
        ("NamesrvRegistrationsRefused", "NamesrvTopicsSkipped"),
    ),
    State("A name server answers with an error", ("SERVER_ERROR",), odd.server_error),
    State("RocketMQ's port is asked", ("WRONG_PORT",), odd.wrong_port),
    State(
        "Two brokers have one id",
        ("BROKER_ID_CONTESTED",),
        odd.flapping,
        ("NamesrvRoutesFlap", "NamesrvBrokerIdsContested"),
    ),
    State("A watcher does not read", (), odd.watcher_late, ("NamesrvWatchersLate", "NamesrvLookUpsSlow")),
    State("Files run out", (), odd.files_run_out, ("NamesrvFilesRunOut",)),
    State("The topics of a broker are broken", (), odd.topics_broken, ("BrokerAgentTopicsBroken",)),
    State("A clock is wrong", ("CLOCK_SKEW",), odd.clock_wrong),
    State("An upgrade is under way", ("VERSIONS_DIFFER",), odd.half_upgraded),
    State(
        "Names are given twice",
        ("SAME_NAME_TWICE", "GROUP_NAME_TWICE", "BROKER_WITHOUT_CHANNEL"),
        names_given_twice,
    ),
)
