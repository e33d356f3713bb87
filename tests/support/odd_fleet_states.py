"""Fleets in states that alerts are about, or that a fleet does not get into by itself within seconds."""

from __future__ import annotations

import resource
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
from google.protobuf.message import Message
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import RichError
from tests.support.fakes.odd_machine import OddClock, odd_environment
from tests.support.hostile.server import hostile_server
from tests.support.programs.agents import Agent, StandInBroker
from tests.support.programs.processes import TOPICS, Client, NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient, broker_fields
from tests.support.programs.rocketmq import register as register_as_rocketmq
from tests.support.registrations import identity, register, registration, topic_config
from tests.support.scenes import TOPIC, Scene, registered_agent, scene_of, two_name_servers
from tests.support.secured.agents import agent_flags
from tests.support.secured.certificates import DAY
from tests.support.secured.fleet import Place

HELD_UP_SECONDS = 1.5
WRONG_SECONDS = 5.0
SILENT_SECONDS = 70.0
WATCHED_TOPICS, TURNS = 5_000, 12
"""So many changes of so many topics are more than the connection takes of a watcher that does not read."""
FEW_DESCRIPTORS = 64


@contextmanager
def held_up(folder: Path) -> Iterator[Scene]:
    """A name server that was stopped for a second and a half, and goes on."""
    with NamesrvProcess("--name", "ns-a", "--data-dir", str(folder)) as server:
        server.signal(signal.SIGSTOP)
        threading.Event().wait(HELD_UP_SECONDS)  # how long it is stopped
        server.signal(signal.SIGCONT)
        with server.connect() as client:
            eventually(lambda: client.told_diagnostics().loop_lag_millis, lambda lag: lag > 1_000)
        yield scene_of([server], words={"PID": str(server.pid)})


@contextmanager
def clock_wrong(folder: Path) -> Iterator[Scene]:
    """The clock of one of two name servers is five seconds behind."""
    clock = OddClock(folder / "clock", -WRONG_SECONDS)
    with two_name_servers(folder, second_is=clock.environment) as servers, registered_agent(servers):
        yield scene_of(servers)


@contextmanager
def broker_silent(folder: Path) -> Iterator[Scene]:
    """One of two brokers was last seen 70 s ago, by a clock that was behind and is right now; its channel is open."""
    clock = OddClock(folder / "clock", -SILENT_SECONDS)
    flags = ("--name", "ns-a", "--data-dir", str(folder / "data"))
    with NamesrvProcess(*flags, environment=clock.environment) as server, server.connect() as client:
        channel = client.open_channel()
        register(client, TOPIC, channel_id=channel.id)
        clock.set(0)
        register(client, TOPIC, name="broker-b", port=10921, channel_id=channel.id)
        yield scene_of([server])


@contextmanager
def few_permits(folder: Path) -> Iterator[Scene]:
    """A name server with permits, and an operator whose token is a client's."""
    place = Place.make(folder)
    flags = ("--tls-ca", str(place.authority.path), "--token-file", str(place.tokens["client"]))
    with NamesrvProcess("--name", "ns-a", *place.flags("TLS")) as server:
        yield scene_of([server], flags=flags)


@contextmanager
def half_upgraded(folder: Path) -> Iterator[Scene]:
    """One of two name servers is of the version before."""
    with two_name_servers(folder, ("--engine", "development"), odd_environment("0.1.0")) as servers:
        yield scene_of(servers)


@contextmanager
def address_local(folder: Path) -> Iterator[Scene]:
    """Of two brokers, one registered loopback."""
    with NamesrvProcess("--name", "ns-a", "--data-dir", str(folder)) as server, server.connect() as client:
        channel = client.open_channel()
        for number, addr in enumerate(("127.0.0.1:10911", "10.0.0.2:10911")):
            broker = identity(addr, name=f"broker-{'ab'[number]}")
            request = registration((TOPIC,), broker, channel_id=channel.id)
            client.registration.RegisterBroker(request, timeout=Client.TIMEOUT)
        yield scene_of([server])


@contextmanager
def registrations_refused(folder: Path) -> Iterator[Scene]:
    """Brokers of RocketMQ register: one without a name, one with a topic whose name has a tab."""
    flags = ("--name", "ns-a", "--data-dir", str(folder), "--remoting-listen", "127.0.0.1:0")
    with (
        NamesrvProcess(*flags) as server,
        RemotingClient(str(server.wait_for("namesrv_started")["remoting"])) as client,
    ):
        assert register_as_rocketmq(client, [TOPIC, "a\tb"]).code == 0
        assert register_as_rocketmq(client, [TOPIC], broker_fields(name="")).code != 0
        yield scene_of([server])


@contextmanager
def server_error(_folder: Path) -> Iterator[Scene]:
    """A name server with a defect: each call ends with an error."""

    def fail(_method: object, context: grpc.ServicerContext) -> Message:
        text = "error 7c1d of this name server; its log has the same id"
        error = RichError(grpc.StatusCode.INTERNAL, text, reason="INTERNAL_DEFECT", domain="namesrv")
        context.abort_with_status(error.status())
        raise AssertionError

    with hostile_server(fail) as endpoint:
        yield Scene(str(endpoint), {str(endpoint): "ns-a:9876"})


@contextmanager
def wrong_port(folder: Path) -> Iterator[Scene]:
    """An operator gives nsctl the port of brokers and clients."""
    flags = ("--name", "ns-a", "--data-dir", str(folder), "--remoting-listen", "127.0.0.1:0")
    with NamesrvProcess(*flags) as server:
        remoting = str(server.wait_for("namesrv_started")["remoting"])
        yield Scene(remoting, {remoting: "ns-a:9876"})


@contextmanager
def flapping(folder: Path) -> Iterator[Scene]:
    """Two agents have one name and one id, and each replaces the broker of the other."""
    with NamesrvProcess("--name", "ns-a", "--data-dir", str(folder)) as server, ExitStack() as held:
        agents = []
        for port in (10911, 10921):
            client = held.enter_context(server.connect())
            agents.append((client, client.open_channel(), port))
        for turn in range(3):
            for client, channel, port in agents:
                register(client, TOPIC, port=port, counter=turn + 1, channel_id=channel.id)
        yield scene_of([server])


@contextmanager
def watcher_late(folder: Path) -> Iterator[Scene]:
    """Somebody watches every topic, and does not read what he is sent."""
    with (
        NamesrvProcess("--name", "ns-a", "--data-dir", str(folder)) as server,
        server.connect() as broker,
        server.connect() as watcher,
    ):
        channel = broker.open_channel()
        watch = watcher.routes.WatchTopicRoutes(iter([pb.WatchTopicRoutesRequest(topic_prefixes=["Topic"])]))

        for turn in range(1, TURNS + 1):
            request = registration((), counter=turn, channel_id=channel.id)
            request.topic_configs.extend(topic_config(f"Topic-{number}", turn) for number in range(WATCHED_TOPICS))
            broker.registration.RegisterBroker(request, timeout=Client.TIMEOUT)
        yield scene_of([server])
        watch.cancel()  # type: ignore[no-untyped-call]


@contextmanager
def nowhere_registered(folder: Path) -> Iterator[Scene]:
    """All name servers of an agent were killed."""
    with two_name_servers(folder) as servers, registered_agent(servers) as agent, agent.connect() as client:
        for server in servers:
            server.kill()
        eventually(lambda: [target.registered for target in client.status().targets], lambda told: not any(told))
        yield scene_of(servers, agent)


@contextmanager
def broker_dead(folder: Path) -> Iterator[Scene]:
    """A broker was killed beside its agent."""
    probe = ("--probe-failures", "1")
    with (
        NamesrvProcess("--name", "ns-a", "--data-dir", str(folder)) as server,
        server.connect() as client,
        StandInBroker() as broker,
        Agent(str(server.endpoint), *probe, probe="tcp", broker_addr=str(broker.endpoint)) as agent,
    ):
        eventually(client.route)
        broker.kill()
        eventually(client.route, lambda route: route is None)
        scene = scene_of([server], agent)
        yield replace(scene, public={**scene.public, str(broker.endpoint): "10.0.0.21:10911"})


@contextmanager
def topics_broken(folder: Path) -> Iterator[Scene]:
    """A broker's topics.json was broken after its agent had registered it."""
    topics = folder / "topics.json"
    shutil.copy(TOPICS, topics)
    with (
        NamesrvProcess("--name", "ns-a", "--data-dir", str(folder / "data")) as server,
        Agent(str(server.endpoint), topics=topics) as agent,
        agent.connect() as client,
    ):
        eventually(lambda: agent.events("registered"))
        topics.write_text("{")
        eventually(lambda: client.status().topics_problem)
        scene = scene_of([server], agent)
        yield replace(scene, public={**scene.public, str(folder): "/var/lib/broker/config"})


@contextmanager
def agents_certificate_ended(folder: Path) -> Iterator[Scene]:
    """The certificate of an agent has ended, and name servers ask for one."""
    place = Place.make(folder)
    place.callers["broker"] = place.authority.sign(
        "broker", ["broker.example", "localhost"], ips=["127.0.0.1"], begins=-30 * DAY, ends=-DAY
    )
    admin = place.callers["admin"]
    flags = ("--tls-cert", str(admin.certificate), "--tls-key", str(admin.key), "--tls-ca", str(place.authority.path))
    with (
        NamesrvProcess("--name", "ns-a", *place.flags("mTLS")) as server,
        Agent(str(server.endpoint), *agent_flags(place, "broker")) as agent,
    ):
        yield scene_of([server], agent, flags)


@contextmanager
def files_run_out(folder: Path) -> Iterator[Scene]:
    """A name server that may have few files open, and a program that opens one connection after the other."""
    with NamesrvProcess("--name", "ns-a", "--data-dir", str(folder)) as server, ExitStack() as held:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, FEW_DESCRIPTORS))
        for _ in range(10):
            client: Client = held.enter_context(server.connect())
            assert client.route() is None
        yield scene_of([server], words={"PORT": str(server.endpoint.port)})
