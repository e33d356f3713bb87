"""Agents as processes, with name servers and brokers that start, hang, die and come back."""

from __future__ import annotations

import signal
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb

from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topics_json import encode_topics
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.agents import StartNameServer
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.programs.agents import (
    EXACTLY,
    NEVER_SCAN,
    Agent,
    AgentClient,
    StandInBroker,
    asking_all_the_time,
    free_port,
    held_port,
    joined,
    name_servers,
    topics_of,
)
from tests.support.programs.processes import BIN, Client, NamesrvProcess, Process, eventually
from tests.support.static_topics import REAL_MAPPINGS, mappings_json

# The agent as a process of its own: start, signals, exit codes.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unregisters_and_the_exit_code_is_0(name_server: StartNameServer, number: signal.Signals) -> None:
    servers = [name_server("one"), name_server("two")]
    with Agent(joined(*(server.endpoint for server in servers))) as agent:
        assert [len(server.registrations) for server in servers] == [1, 1]
        check = (str(BIN / "broker-agent"), "healthcheck", f"--fast-listen={agent.endpoint}")
        # It has three seconds, and no flag for more.
        eventually(lambda: subprocess.run(check, check=False).returncode, lambda code: code == 0)
        agent.signal(number)
        assert agent.wait() == 0
    assert [len(server.unregistrations) for server in servers] == [1, 1]
    assert agent.lines[-1]["event"] == "agent_stopped"
    assert [line for line in agent.lines if line["level"] in ("warning", "error")] == []


# Agents and name servers of every kind: whatever one of them does, the others are registered with as if alone.

UNAVAILABLE = RichError(grpc.StatusCode.UNAVAILABLE, "not now", "OVERLOADED", "namesrv")


def last_error(agent: AgentClient, endpoint: Endpoint) -> str:
    """What is wrong with a name server, in the agent's status."""
    return agent.target(endpoint).last_error


def test_stopped_dead_busy_or_slow_name_servers_delay_no_other() -> None:
    with (
        NamesrvProcess(*NEVER_SCAN) as healthy,
        NamesrvProcess(*NEVER_SCAN) as stopped,
        FakeNameServer("unavailable") as unavailable,
        FakeNameServer("slow") as slow,
        free_port() as refusing,
        healthy.connect() as client,
    ):
        stopped.signal(signal.SIGSTOP)
        unavailable.refusal, slow.delay_seconds = UNAVAILABLE, 3.0
        endpoints = joined(stopped, refusing, unavailable, slow, healthy)
        with Agent(endpoints) as agent, agent.connect() as status:
            # The agent says that it has started when the first round is over.
            assert client.addrs() == {0: "127.0.0.1:10911"}
            assert healthy.wait_for("broker_registered")["timestamp"] < agent.wait_for("agent_started")["timestamp"]
            eventually(lambda: status.target(slow.endpoint).registered)
            for endpoint in (stopped.endpoint, refusing, unavailable.endpoint):
                eventually(partial(last_error, status, endpoint))
                assert not status.target(endpoint).registered
            stopped.signal(signal.SIGCONT)
            eventually(lambda: status.target(stopped.endpoint).registered)
            assert agent.terminate() == 0


# The agent watches its broker: a dead one leaves the routes though its agent lives, and comes back by itself.

ELSEWHERE = "10.0.0.1:10911"


def test_a_broker_is_routed_just_as_long_as_it_listens() -> None:
    with (
        held_port() as port,
        NamesrvProcess(*NEVER_SCAN) as server,
        server.connect() as client,
        Agent(str(server.endpoint), f"--probe-addr=127.0.0.1:{port}", broker_addr=ELSEWHERE, probe="tcp") as agent,
        agent.connect() as status,
    ):
        assert agent.events("broker_not_there_yet")
        assert status.status().broker_probe == agent_pb.BROKER_PROBE_STATE_DOWN
        assert server.events("broker_registered") == []
        with StandInBroker(port) as broker:
            eventually(client.addrs, lambda addrs: addrs == {0: ELSEWHERE})
            assert status.status().broker_probe == agent_pb.BROKER_PROBE_STATE_UP
            broker.kill()
            eventually(client.route, lambda route: route is None)
            assert server.wait_for("broker_removed")["reason"] == "BROKER_DOWN"
            assert status.status().broker_probe == agent_pb.BROKER_PROBE_STATE_DOWN
        with StandInBroker(port):
            eventually(client.addrs, lambda addrs: addrs == {0: ELSEWHERE})
        # Each change is said once, although the broker was looked at every second.
        eventually(
            lambda: [len(agent.events(event)) for event in ("broker_down", "broker_up")],
            lambda counts: counts == [1, 2],
        )


# An agent is upgraded, and every answer to a client has its healthy broker.

KEEP = ("--on-stop", "keep")
ADDR = "127.0.0.1:10911"


def generation(client: Client) -> int:
    """Number of the broker's registration; 0 if there is none."""
    return max((row.generation for message in client.snapshot() for row in message.chunk.live_brokers), default=0)


def test_no_answer_lacks_the_broker_while_its_agent_is_upgraded(namesrv: NamesrvProcess, client: Client) -> None:
    with ExitStack() as agents:
        old = agents.enter_context(Agent(str(namesrv.endpoint), *KEEP))
        eventually(client.addrs)
        before = generation(client)
        with namesrv.connect() as asking, asking_all_the_time(asking.addrs) as answers:
            assert old.terminate() == 0
            agents.enter_context(Agent(str(namesrv.endpoint), *KEEP))
            eventually(lambda: generation(client) > before)
            count = len(answers)
            assert count, "the client asked while the agents changed"
            eventually(lambda: len(answers), lambda now: now > count + 10)
        assert [answer for answer in answers if answer != {0: ADDR}] == []
        assert namesrv.events("broker_removed") == []


# The topics of a broker in the routes of all name servers.


def test_mappings_of_static_topics_are_in_all_routes_and_change(tmp_path: Path) -> None:
    """The file is RocketMQ's, from the start; then another mapping comes, without a change of topics.json."""
    topics, mappings = tmp_path / "topics.json", tmp_path / "topicQueueMapping.json"
    table = TopicConfigTable(DataVersion(1, 1), (TopicConfig("Static", 4, 8, 6), TopicConfig("Ordinary", 1, 1, 6)))
    topics.write_bytes(encode_topics(table))
    mappings.write_bytes(REAL_MAPPINGS)
    moved = {"0": [{"bname": "broker-c", "queueId": 1}, {"bname": "broker-d", "queueId": 0}]}
    changed = {"bname": "broker-c", "epoch": 2, "hostedQueues": moved, "scope": "__global__", "totalQueues": 4}

    def queue_ids(client: Client) -> list[tuple[int, int]] | None:
        route = client.route("Static")
        if route is None or not route.queue_datas[0].HasField("mapping"):
            return None
        mapping = route.queue_datas[0].mapping
        return list(zip(mapping.topic_queue_ids, mapping.broker_queue_ids, strict=True))

    with name_servers(2, *EXACTLY) as servers, Agent(joined(*(server for server, _ in servers)), topics=topics):
        for _, client in servers:
            assert eventually(partial(queue_ids, client)) == [(0, 0), (1, 1)]
        mappings.write_bytes(mappings_json({"Static": changed}, counter=2))
        for _, client in servers:
            eventually(partial(queue_ids, client), [].__eq__)
            assert topics_of(client) == {"Static": (4, 8, 6), "Ordinary": (1, 1, 6)}


# The files of deploy/systemd as an agent meets them on a new machine.

FILE = Path(__file__).parents[3] / "deploy/systemd/broker-a.toml"


def test_the_shipped_file_registers_a_broker_that_has_written_nothing_yet(tmp_path: Path) -> None:
    with NamesrvProcess() as namesrv, namesrv.connect() as client:
        text = FILE.read_text()
        shipped = 'namesrv = ["10.0.0.11:9878", "10.0.0.12:9878", "10.0.0.13:9878"]'
        for old, new in (
            (shipped, f'namesrv = ["{namesrv.endpoint}"]'),
            ('"10.0.0.21:10911"', f'"{namesrv.endpoint}"'),  # answers instead of the broker
            ("/var/lib/broker/config", str(tmp_path / "not there yet")),
            ("127.0.0.1:5558", "127.0.0.1:0"),
        ):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "broker-a.toml").write_text(text)
        serve = [str(BIN / "broker-agent"), "serve", "--config", str(tmp_path / "broker-a.toml")]
        with Process([*serve, "--log-format", "json", "--listen", "127.0.0.1:0"]) as agent:
            eventually(lambda: client.route("TBW102"))
            agent.wait_for("topics_file_awaited")
