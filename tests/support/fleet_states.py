"""Fleets in the states that an operator meets: each a context in which the state lasts."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
from google.protobuf.message import Message
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.admin_service_pb2 import DeleteTopicRequest, WipeWritePermOfBrokerRequest

from namesrv_common.grpc_errors import RichError
from tests.support import failpoints
from tests.support.fakes.odd_program import VERSION, OddClock, odd_environment
from tests.support.fakes.scripted_namesrv import refuse
from tests.support.hostile.server import hostile_server
from tests.support.programs.agents import Agent, held_port, joined
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient, broker_fields
from tests.support.programs.rocketmq import register as register_as_rocketmq
from tests.support.registrations import identity, register, registration
from tests.support.secured.certificates import DAY, Authority
from tests.support.secured.fleet import Place

BROKER, TOPIC = "broker-a", "TopicTest"
NOWHERE = "127.0.0.1:1"


@dataclass(frozen=True)
class Scene:
    """What an operator needs to look at a fleet."""

    namesrv: str
    """The list of name servers."""
    public: Mapping[str, str]
    """Addresses of this run, each with the one that a page shows."""
    agent: str = NOWHERE
    flags: tuple[str, ...] = ()
    """Of nsctl, in addition to the name servers or agents."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What the runbook's words in capitals stand for here, where it is not the usual."""

    def command(self, text: str) -> str:
        """A command of the runbook with what its words in capitals stand for here."""
        words = {"BROKER": BROKER, "TOPIC": TOPIC, "AGENT": self.agent, **self.words}
        return re.sub("|".join(rf"\b{word}\b" for word in words), lambda found: words[found[0]], text)


def name_server(
    folder: Path, *flags: str, name: str = "ns-a", environment: dict[str, str] | None = None
) -> NamesrvProcess:
    """A name server with a data directory of its own in a folder."""
    return NamesrvProcess("--name", name, "--data-dir", str(folder / name), *flags, environment=environment)


@contextmanager
def two_name_servers(
    folder: Path, second: tuple[str, ...] = (), second_is: dict[str, str] | None = None
) -> Iterator[list[NamesrvProcess]]:
    """Two of them: ``second`` are flags of the second, ``second_is`` are variables of it."""
    with name_server(folder) as one, name_server(folder, *second, name="ns-b", environment=second_is) as two:
        yield [one, two]


def scene_of(servers: list[NamesrvProcess], agent: Agent | None = None) -> Scene:
    """The scene of name servers that have the addresses ns-a, ns-b and so on for the public."""
    public = {str(server.endpoint): f"ns-{letter}:9876" for server, letter in zip(servers, "abc", strict=False)}
    if agent is None:
        return Scene(joined(*servers), public)
    return Scene(joined(*servers), {**public, str(agent.endpoint): "agent-a2:10918"}, str(agent.endpoint))


@contextmanager
def registered_agent(servers: list[NamesrvProcess], broker_id: int = 0) -> Iterator[Agent]:
    """An agent whose broker every name server has."""
    with Agent(joined(*servers), broker_id=broker_id, broker_addr=f"127.0.0.1:{10911 + broker_id}") as agent:
        eventually(lambda: agent.events("registered"), lambda told: len(told) == len(servers))
        yield agent


def status_of(server: NamesrvProcess) -> pb.GetNamesrvStatusResponse:
    """What a name server says of itself."""
    with server.connect() as client:
        return client.routes.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), timeout=Client.TIMEOUT)


@dataclass(frozen=True)
class State:
    """A state, and the runbook's paragraphs about it: findings of the doctor, in capitals, and alerts."""

    title: str
    paragraphs: tuple[str, ...]
    enter: Callable[[Path], AbstractContextManager[Scene]]

    @property
    def codes(self) -> set[str]:
        """Of the doctor's findings, those that this state is about."""
        return set(filter(str.isupper, self.paragraphs))


STATES: list[State] = []


def state(title: str, *paragraphs: str) -> Callable[[Callable[[Path], Iterator[Scene]]], None]:
    """Makes a state of a function that enters it, yields its scene, and leaves it."""
    return lambda enter: STATES.append(State(title, paragraphs, contextmanager(enter)))


@state("Healthy")
def healthy(folder: Path) -> Iterator[Scene]:
    """Two name servers and a broker."""
    with two_name_servers(folder) as servers, registered_agent(servers):
        yield scene_of(servers)


@state(
    "A master was killed",
    "BROKER_LOST",
    "GROUP_WITHOUT_MASTER",
    "TOPICS_NOT_WRITABLE",
    "NamesrvBrokersLost",
    "NamesrvGroupsWithoutMaster",
    "NamesrvTopicsNotWritable",
    "BrokerAgentDown",
)
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


@state("The master is back", "BROKER_CAME_BACK")
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


@state("A broker is silent, and at loopback", "BROKER_SILENT", "BROKER_ADDRESS_LOCAL", "NamesrvLocalBrokers")
def broker_silent(folder: Path) -> Iterator[Scene]:
    """One of two brokers is at loopback, and was last seen 70 s ago by a clock that was behind and is right now."""
    clock = OddClock(folder / "clock", -70.0)
    with name_server(folder, environment=clock.environment) as server, server.connect() as client:
        channel = client.open_channel()
        register(client, TOPIC, channel_id=channel.id)
        clock.set(0)
        request = registration((TOPIC,), identity("10.0.0.2:10911", name="broker-b"), channel_id=channel.id)
        client.registration.RegisterBroker(request, timeout=Client.TIMEOUT)
        yield scene_of([server])


@state("Drained and forgotten", "INTENT_FORGOTTEN", "INTENT_IN_FORCE", "TOPICS_DRAINED")
def drained_and_forgotten(folder: Path) -> Iterator[Scene]:
    """A broker was drained two days ago, and a topic is held back since a moment ago."""
    clock = OddClock(folder / "clock", -2 * 86_400.0)
    with name_server(folder, environment=clock.environment) as server, server.connect() as client:
        drain = WipeWritePermOfBrokerRequest(broker_name=BROKER, cluster_name="DefaultCluster", comment="new disks")
        client.admin.WipeWritePermOfBroker(drain, timeout=Client.TIMEOUT)
        clock.set(0)
        hold = DeleteTopicRequest(topic="Old", hold=True, comment="legal hold")
        client.admin.DeleteTopic(hold, timeout=Client.TIMEOUT)
        with registered_agent([server]):
            yield replace(scene_of([server]), words={"TOPIC": "Old"})


@state("A disk is full", "DATA_DIR_NOT_WRITTEN", "NamesrvDurableWritesRefused", "NamesrvSnapshotOld")
def disk_full(folder: Path) -> Iterator[Scene]:
    """The disk of one of two name servers takes nothing more."""
    (faults := folder / "faults").touch()
    flags, environment = ("--snapshot-interval-millis", "50"), failpoints.environment(faults)
    with name_server(folder, *flags, environment=environment) as full, name_server(folder, name="ns-b") as sound:
        faults.write_text("* write * = ENOSPC")
        with registered_agent([full, sound]):
            eventually(lambda: status_of(full).data_dir_problem, lambda problem: "database" in problem)
            yield scene_of([full, sound])


@state("A certificate has ended or ends soon", "CERTIFICATE_ENDED", "CERTIFICATE_ENDS_SOON", "NamesrvCertificateEnded")
def certificates_end(folder: Path) -> Iterator[Scene]:
    """Two name servers with TLS, whose certificates were made for thirty days."""
    authority, servers = Authority(folder), []
    with ExitStack() as running:
        for name, ends in (("ns-a", -DAY), ("ns-b", 5 * DAY)):
            shown = authority.sign(name, ips=["127.0.0.1"], begins=ends - 30 * DAY, ends=ends)
            flags = ("--name", name, "--tls-cert", str(shown.certificate), "--tls-key", str(shown.key))
            servers.append(running.enter_context(NamesrvProcess(*flags)))
        yield replace(scene_of(servers), flags=("--tls-ca", str(authority.path)))


@state("Plain text to a TLS port", "TLS_REFUSED")
def called_in_plain_text(folder: Path) -> Iterator[Scene]:
    """One name server with TLS, and an operator who does not know."""
    place = Place.make(folder)
    with NamesrvProcess("--name", "ns-a", *place.flags("TLS", with_permits=False)) as server:
        yield scene_of([server])


@state("A token with few permits", "NOT_ALLOWED")
def few_permits(folder: Path) -> Iterator[Scene]:
    """A name server with permits, and an operator whose token is a client's."""
    place = Place.make(folder)
    flags = ("--tls-ca", str(place.authority.path), "--token-file", str(place.tokens["client"]))
    with NamesrvProcess("--name", "ns-a", *place.flags("TLS")) as server:
        yield replace(scene_of([server]), flags=flags)


@state("Name servers disagree", "NAME_SERVERS_DISAGREE", "NamesrvDisagree")
def disagreeing(folder: Path) -> Iterator[Scene]:
    """One name server is missing in an agent's list."""
    with two_name_servers(folder) as servers, registered_agent(servers[:1]):
        yield scene_of(servers)


@state("A name server is down", "UNREACHABLE", "NamesrvDown", "NamesrvFewLeft", "BrokerAgentRegistrationOld")
def one_down(folder: Path) -> Iterator[Scene]:
    """One of two name servers was killed."""
    with two_name_servers(folder) as servers, registered_agent(servers) as agent, agent.connect() as client:
        servers[1].kill()
        lost = str(servers[1].endpoint)
        eventually(
            lambda: [one.endpoint for one in client.status().targets if not one.registered], lambda at: at == [lost]
        )
        yield scene_of(servers, agent)


@state("Many brokers were lost at once", "GUARD_HOLDS_BROKERS", "NamesrvMassLossHeld")
def mass_loss(folder: Path) -> Iterator[Scene]:
    """One name server lost the channels of five of five brokers at once."""
    with name_server(folder) as server, ExitStack() as left:
        for number in range(5):
            client = left.enter_context(server.connect())
            channel = client.open_channel()
            register(client, TOPIC, name=f"broker-{number}", port=10911 + number, channel_id=channel.id)
        left.close()
        eventually(lambda: status_of(server).guarded_broker_count, lambda held: held == 5)
        yield scene_of([server])


@state("Just started", "WARMING")
def warming(folder: Path) -> Iterator[Scene]:
    """A name server that was started for the first time a moment ago."""
    with name_server(folder, "--warm-up-millis", "600000") as server:
        yield scene_of([server])


@state("Restarted, and brokers have not come back", "BROKERS_UNCONFIRMED", "NamesrvNotWarm")
def restarted(folder: Path) -> Iterator[Scene]:
    """A name server was restarted, and is not in the list of the agent whose broker its snapshot file has."""
    with name_server(folder) as server:
        with server.connect() as client:
            register(client, TOPIC)
        assert server.terminate() == 0
    with name_server(folder) as server, held_port() as other, Agent(str(other)) as agent:
        scene = scene_of([server], agent)
        yield replace(scene, public={**scene.public, str(other): "ns-old:9876"})


@state("Held up, without a broker", "EVENT_LOOP_HELD_UP", "NO_BROKERS", "NamesrvEventLoopHeldUp", "NamesrvFleetEmpty")
def held_up(folder: Path) -> Iterator[Scene]:
    """A name server that no broker knows was stopped for a second and a half, and continues."""
    with name_server(folder) as server:
        server.signal(signal.SIGSTOP)
        threading.Event().wait(1.5)  # how long it is stopped
        server.signal(signal.SIGCONT)
        with server.connect() as client:
            eventually(lambda: client.told_diagnostics().loop_lag_millis, lambda lag: lag > 1_000)
        yield scene_of([server])


@state(
    "Registrations are refused",
    "REGISTRATIONS_REFUSED",
    "TOPICS_SKIPPED",
    "NamesrvRegistrationsRefused",
    "NamesrvTopicsSkipped",
)
def registrations_refused(folder: Path) -> Iterator[Scene]:
    """Brokers of RocketMQ register: one without a name, one with a topic whose name has a tab."""
    with (
        name_server(folder, "--remoting-listen", "127.0.0.1:0") as server,
        RemotingClient(str(server.wait_for("namesrv_started")["remoting"])) as client,
    ):
        assert register_as_rocketmq(client, [TOPIC, "a\tb"]).code == 0
        assert register_as_rocketmq(client, [TOPIC], broker_fields(name="")).code != 0
        yield scene_of([server])


@state("A name server answers with an error, and RocketMQ's port is asked", "SERVER_ERROR", "WRONG_PORT")
def wrong_answers(folder: Path) -> Iterator[Scene]:
    """Each call of one name server ends with an error. Of the other, nsctl is given the port of brokers and clients."""

    def fail(_method: object, context: grpc.ServicerContext) -> Message:
        text = "error 7c1d of this name server; its log has the same id"
        error = RichError(grpc.StatusCode.INTERNAL, text, reason="INTERNAL_DEFECT", domain="namesrv")
        refuse(context, error)

    with hostile_server(fail) as broken, name_server(folder, "--remoting-listen", "127.0.0.1:0") as server:
        remoting = str(server.wait_for("namesrv_started")["remoting"])
        yield Scene(f"{broken};{remoting}", {str(broken): "ns-a:9876", remoting: "ns-b:9876"})


@state("Two brokers have one id", "BROKER_ID_CONTESTED", "NamesrvRoutesFlap", "NamesrvBrokerIdsContested")
def flapping(folder: Path) -> Iterator[Scene]:
    """Two agents have one name and one id, and each replaces the broker of the other."""
    with name_server(folder) as server, ExitStack() as held:
        agents = []
        for port in (10911, 10921):
            client = held.enter_context(server.connect())
            agents.append((client, client.open_channel(), port))
        for turn in range(3):
            for client, channel, port in agents:
                register(client, TOPIC, port=port, counter=turn + 1, channel_id=channel.id)
        yield scene_of([server])


@state("An upgrade is under way, and a clock is wrong", "VERSIONS_DIFFER", "CLOCK_SKEW")
def half_upgraded(folder: Path) -> Iterator[Scene]:
    """One of two name servers is of the version before, and its clock is five seconds behind."""
    odd = OddClock(folder / "clock", -5.0).environment | odd_environment(VERSION, "0.1.0")
    with two_name_servers(folder, ("--engine", "development"), odd) as servers, registered_agent(servers):
        yield scene_of(servers)


@state("Names are given twice", "SAME_NAME_TWICE", "GROUP_NAME_TWICE", "BROKER_WITHOUT_CHANNEL")
def names_given_twice(folder: Path) -> Iterator[Scene]:
    """Two name servers of one name, two groups of one name, and both registered without a channel."""
    with two_name_servers(folder, second=("--name", "ns-a")) as servers:
        for server in servers:
            with server.connect() as client:
                for number, cluster in enumerate(("east", "west")):
                    broker = identity(f"127.0.0.1:{10911 + number}", cluster=cluster)
                    client.registration.RegisterBroker(registration((TOPIC,), broker), timeout=Client.TIMEOUT)
        yield scene_of(servers)
