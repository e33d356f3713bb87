"""Agents as processes, with name servers and brokers that start, hang, die and come back."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import pytest
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from broker_agent_api.v1 import client_service_pb2
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc
from namesrv_api.v1 import route_data_pb2
from typer.testing import CliRunner, Result

from broker_agent.broker_probe import connect_to
from broker_agent.cli import app
from broker_agent.listener import THREADS
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topics_json import encode_topics
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from namesrv_common.process.program import without_others
from namesrv_common.topic_names import MAX_LABELS
from tests.support import metrics_page
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.hostile.frames import OF_LISTENERS, call, hello
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import NEVER_SCAN, Agent, held_port, joined, repeating
from tests.support.programs.processes import BIN, TOPICS, Client, NamesrvProcess, Process, eventually
from tests.support.secured.fleet import outcome
from tests.support.static_topics import REAL_MAPPINGS, mappings_json

UNAVAILABLE = RichError(grpc.StatusCode.UNAVAILABLE, "not now", "OVERLOADED", "namesrv")

# The agent as a process of its own: start, signals, exit codes.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unregisters_and_the_exit_code_is_0(server: FakeNameServer, number: signal.Signals) -> None:
    with Agent(str(server.endpoint)) as agent:
        assert len(server.registrations) == 1
        check = (str(BIN / "broker-agent"), "healthcheck", f"--fast-listen={agent.endpoint}")
        # It has three seconds, and no flag for more.
        eventually(lambda: subprocess.run(check, check=False).returncode, lambda code: code == 0)
        agent.signal(number)
        assert agent.wait() == 0
    assert len(server.unregistrations) == 1
    assert agent.lines[-1]["event"] == "agent_stopped"
    assert [line for line in agent.lines if line["level"] in ("warning", "error")] == []


def test_an_agent_that_registers_in_vain_stops_trying_and_unregisters(server: FakeNameServer, tmp_path: Path) -> None:
    topics = Path(shutil.copy(TOPICS, tmp_path / "topics.json"))
    with Agent(str(server.endpoint), topics=topics) as agent:
        server.refusal = UNAVAILABLE
        topics.write_text(topics.read_text().replace("TopicTest", "TopicOfNow"))
        server.wait_until(lambda: len(server.registrations) > 1)
        assert agent.terminate(TIMEOUT) == 0
    assert server.unregistrations


# Agents and name servers of every kind: whatever one of them does, the others are registered with as if alone.


def test_stopped_dead_busy_or_slow_name_servers_delay_no_other() -> None:
    with (
        NamesrvProcess(*NEVER_SCAN) as healthy,
        NamesrvProcess(*NEVER_SCAN) as stopped,
        FakeNameServer("unavailable") as unavailable,
        FakeNameServer("slow") as slow,
        held_port() as refusing,
        healthy.connect() as client,
    ):
        stopped.signal(signal.SIGSTOP)
        unavailable.refusal = UNAVAILABLE
        slow.delay_seconds = 3.0
        endpoints = joined(stopped, refusing, unavailable, slow, healthy)
        with Agent(endpoints) as agent, agent.connect() as status:
            # The agent says that it has started when the first round is over.
            assert client.addrs() == {0: "127.0.0.1:10911"}
            assert healthy.wait_for("broker_registered")["timestamp"] < agent.wait_for("agent_started")["timestamp"]
            eventually(lambda: status.target(slow.endpoint).registered)
            for endpoint in (stopped.endpoint, refusing, unavailable.endpoint):
                target = eventually(partial(status.target, endpoint), lambda target: target.last_error != "")
                assert not target.registered
            stopped.signal(signal.SIGCONT)
            eventually(lambda: status.target(stopped.endpoint).registered)
            assert agent.terminate() == 0


# The agent watches its broker: a dead one is unregistered though its agent lives, and comes back by itself.

ELSEWHERE = "10.0.0.1:10911"
BROKER_DOWN, UNREGISTERED = route_data_pb2.REMOVAL_REASON_BROKER_DOWN, route_data_pb2.REMOVAL_REASON_UNREGISTERED


def standing_in(endpoint: Endpoint) -> socket.socket:
    """Listens where a broker would: the system takes connections, and nobody reads them."""
    return socket.create_server(endpoint, backlog=4_096)


def test_a_broker_is_registered_just_as_long_as_it_listens(server: FakeNameServer) -> None:
    with (
        held_port() as place,
        Agent(
            str(server.endpoint), f"--probe-addr={place}", "--probe-failures=2", broker_addr=ELSEWHERE, probe="tcp"
        ) as agent,
        agent.connect() as calls,
    ):
        assert agent.events("broker_not_up")
        assert calls.status().broker_probe == agent_pb.BROKER_PROBE_STATE_DOWN
        assert server.registrations == []
        with standing_in(place) as broker:
            server.wait_until(lambda: len(server.registrations) == 1)
            assert calls.status().broker_probe == agent_pb.BROKER_PROBE_STATE_UP
            broker.close()
            server.wait_until(lambda: len(server.unregistrations) == 1)
            assert calls.status().broker_probe == agent_pb.BROKER_PROBE_STATE_DOWN
        server.end_channels()
        server.wait_until(lambda: server.channels_opened == 2)
        eventually(lambda: calls.target(server.endpoint).channel_open)
        permission = agent_pb.UpdateBrokerPermissionRequest(broker_permission=4)
        changed = calls.agent.UpdateBrokerPermission(permission, timeout=TIMEOUT)
        assert (changed.accepted_count, changed.target_count) == (0, 1)
        assert (len(server.registrations), server.queries) == (1, [])
        with standing_in(place):
            server.wait_until(lambda: len(server.registrations) == 2)
            assert agent.terminate() == 0
    # Each change is said once, although the broker was looked at every second.
    assert len(agent.events("broker_up")) == 2
    assert [line["failures"] for line in agent.events("broker_down")] == [2]
    assert [request.reason for request in server.unregistrations] == [BROKER_DOWN, UNREGISTERED]
    assert server.registrations[1].channel_id == "ns-2"
    assert max(config.perm for config in server.registrations[1].topic_configs) == 4


def test_a_tcp_probe_does_not_take_its_own_connection_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = socket.socket()
    ours.bind(("127.0.0.1", 0))
    ours.connect(ours.getsockname())  # what the system may do when it gives the client the very port it asks for
    with monkeypatch.context() as patched:
        patched.setattr("broker_agent.broker_probe.socket.create_connection", lambda *_: ours)
        with pytest.raises(ConnectionRefusedError, match="nobody listens"):
            connect_to(Endpoint("127.0.0.1", 1))


# An agent is upgraded, and every answer to a client has its healthy broker.

METRICS = ("--metrics-listen", "127.0.0.1:0")
HAND_OVER = ("--on-stop", "handover")
ADDR = "127.0.0.1:10911"


def generation(client: Client) -> int:
    """Number of the broker's registration; 0 if there is none."""
    return max((row.generation for message in client.snapshot() for row in message.chunk.live_brokers), default=0)


def test_no_answer_lacks_the_broker_while_its_agent_is_upgraded(namesrv: NamesrvProcess, client: Client) -> None:
    with ExitStack() as agents:
        old = agents.enter_context(Agent(str(namesrv.endpoint), *HAND_OVER))
        eventually(client.addrs)
        before = generation(client)
        with namesrv.connect() as asking, repeating(asking.addrs) as answers:
            assert old.terminate() == 0
            agents.enter_context(Agent(str(namesrv.endpoint), *HAND_OVER))
            eventually(lambda: generation(client) > before)
            count = len(answers)
            assert count, "the client asked while the agents changed"
            eventually(lambda: len(answers), lambda now: now > count + 10)
        assert [answer for answer in answers if answer != {0: ADDR}] == []
        assert namesrv.events("broker_removed") == []


def test_followed_files_come_into_routes_and_broken_ones_are_shown(tmp_path: Path) -> None:
    """The mappings are RocketMQ's, from the start; then another one comes, without a change of topics.json."""
    topics, mappings = tmp_path / "topics.json", tmp_path / "topicQueueMapping.json"
    topics.write_bytes(encode_topics(TopicConfigTable(DataVersion(1, 1), (TopicConfig("Static", 4, 8, 6),))))
    mappings.write_bytes(REAL_MAPPINGS)
    moved = {"0": [{"bname": "broker-c", "queueId": 1}, {"bname": "broker-d", "queueId": 0}]}
    changed = {"bname": "broker-c", "epoch": 2, "hostedQueues": moved, "scope": "__global__", "totalQueues": 4}
    with (
        NamesrvProcess() as server,
        server.connect() as client,
        Agent(str(server.endpoint), *METRICS, topics=topics) as agent,
        agent.connect() as calls,
    ):

        def queue_ids() -> list[tuple[int, int]] | None:
            route = client.route("Static")
            if route is None or not route.queue_datas[0].HasField("mapping"):
                return None
            (queue,) = route.queue_datas
            assert (queue.read_queue_nums, queue.write_queue_nums, queue.perm) == (4, 8, 6)
            return list(zip(queue.mapping.topic_queue_ids, queue.mapping.broker_queue_ids, strict=True))

        assert eventually(queue_ids) == [(0, 0), (1, 1)]
        mappings.write_bytes(mappings_json({"Static": changed}, counter=2))
        eventually(queue_ids, [].__eq__)
        topics.write_text("{")
        eventually(lambda: samples(agent)["topics_broken",], lambda broken: broken == 1)
        assert calls.status().topics_problem


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


# Half requests and floods of connections hold neither listener of an agent.


def test_more_half_requests_than_threads_keep_nobody_from_an_answer() -> None:
    with NamesrvProcess() as server, Agent(str(server.endpoint)) as agent, ExitStack() as held:
        for endpoint, listener in ((agent.endpoint, "agent"), (agent.ordinary, "clients")):
            path = OF_LISTENERS[listener].lookup
            for _ in range(THREADS):
                peer = held.enter_context(socket.create_connection(endpoint, timeout=20))
                peer.sendall(hello() + b"".join(call(path, 1 + 2 * number, None) for number in range(4)))
                assert peer.recv(1)  # its settings: it has what was sent
            with grpc.insecure_channel(str(endpoint)) as channel:
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert held.enter_context(agent.connect()).status().broker_name == "broker-a"


DESCRIPTORS = 400
WITH_FEW_DESCRIPTORS = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
PLACES = without_others(DESCRIPTORS) // 2
"""Each listener has half of what is not for the agent itself."""


@pytest.mark.parametrize("listener", ["endpoint", "ordinary"])
def test_a_flood_of_connections_leaves_an_agent_what_it_needs_itself(listener: str, tmp_path: Path) -> None:
    topics = Path(shutil.copy(TOPICS, tmp_path / "topics.json"))
    with (
        NamesrvProcess() as server,
        server.connect() as client,
        Agent(str(server.endpoint), topics=topics, prefix=WITH_FEW_DESCRIPTORS) as agent,
        ExitStack() as held,
    ):
        listen = getattr(agent, listener)
        peers = [held.enter_context(socket.create_connection(listen, timeout=20)) for _ in range(DESCRIPTORS)]
        topics.write_text(topics.read_text().replace("TopicTest", "TopicOfNow"))
        eventually(lambda: client.route("TopicOfNow"))
        assert sum(bool(peer.recv(1)) for peer in peers) == PLACES, "the others are closed"
        with agent.connect() as operator:
            assert outcome(operator.status) == ("OK" if listener == "ordinary" else "UNAVAILABLE")
            held.close()
            eventually(lambda: outcome(operator.status) == "OK")


# Metrics of an agent, and its answers over HTTP to whether it is alive and ready.


def get(agent: Agent, path: str) -> tuple[int, str]:
    return metrics_page.get(agent.wait_for("agent_started")["metrics"], path)


def samples(agent: Agent) -> dict[tuple[str, ...], float]:
    """Values by name, without its prefix, and label values."""
    found = metrics_page.samples(agent.wait_for("agent_started")["metrics"])
    return {(name.removeprefix("broker_agent_"), *labels): value for (name, *labels), value in found.items()}


def test_series_come_and_go_with_the_name_servers_and_clients_of_an_agent(tmp_path: Path) -> None:
    file, often = tmp_path / "name-servers", ("--register-name-server-period-millis", "1000")
    with NamesrvProcess(*NEVER_SCAN) as server, held_port() as nobody:
        good, bad = str(server.endpoint), str(nobody)
        file.write_text(bad)
        with Agent(f"file:{file}", *METRICS, *often) as agent:
            assert get(agent, "/healthz") == (200, "ok\n")
            assert get(agent, "/readyz") == (503, "no name server has accepted the registration yet\n")
            file.write_text(f"{good};{bad}")
            groups = [client_service_pb2.ProducerData(group_name=name) for name in ("p1", "p2")]
            with grpc.insecure_channel(str(agent.ordinary)) as connection:
                request = client_service_pb2.HeartbeatRequest(client_id="c1", producer_groups=groups)
                ClientServiceStub(connection).Heartbeat(request, timeout=TIMEOUT)
            seen = eventually(lambda: samples(agent), lambda seen: seen.get(("registered", good)) == 1)
            assert seen["registrations_total", good, "full", "accepted"] >= 1
            assert seen["registration_age_seconds", good] >= 0
            assert seen["registrations_total", bad, "full", "failed"] >= 1
            assert ("registration_age_seconds", bad) not in seen
            assert seen["registered", bad] == 0
            assert seen["broker_up",] == 1
            assert (seen["producer_groups",], seen["producers",], seen["consumers",]) == (2, 2, 0)
            assert seen["topics",] == len(json.loads(TOPICS.read_text())["topicConfigTable"])
            assert get(agent, "/readyz") == (200, "ok\n")
            assert any(name.startswith("grpc_client_") and bad in labels for name, *labels in seen)
            file.write_text(good)
            seen = eventually(lambda: samples(agent), lambda seen: all(bad not in labels for labels in seen))
            assert seen["registered", good] == 1
            file.write_text("not;a;list\n")
            agent.wait_for("namesrv_list_bad")
            assert server.events("broker_removed") == []


# The command line, in this process.

FLAGS = {
    "--broker-name": "broker-a",
    "--broker-id": "0",
    "--broker-addr": "127.0.0.1:10911",
    "--namesrv": "127.0.0.1:9876",
    "--topics": str(TOPICS),
}


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    with pytest.MonkeyPatch.context() as patched:
        # Logs are set up once for the whole process, and would outlive the test.
        patched.setattr("namesrv_common.process.settings_cli.configure_logs", lambda *_: None)
        return CliRunner().invoke(app, arguments, env=env)


def serve(env: dict[str, str] | None = None, *more: str, **changes: str | None) -> Result:
    flags = FLAGS | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    pairs = [text for flag, value in flags.items() if value is not None for text in (flag, value)]
    return run("serve", *pairs, *more, env=env)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--broker-id x", "setting broker_id: Input should be a valid integer"),
        ("--broker-addr 127.0.0.1", "setting broker_addr: address '127.0.0.1' has no port: write host:port"),
        ("--ha-server-addr h:0", "setting ha_server_addr: address 'h:0' has port '0', not a number from 1 to 65535"),
        ("--broker-name a\tb", r"setting broker_name: 'a\tb' has characters that are not printable"),
        (f"--cluster {'c' * 256}", f"setting cluster: {'c' * 40!r}... has 256 bytes, at most 255"),
        ("--broker-permission 8", "setting broker_permission: Input should be less than or equal to 7 (got '8')"),
        ("--namesrv file:/no/list", "setting namesrv: /no/list: No such file or directory"),
        ("--probe udp", "setting probe: Input should be 'tcp' or 'none' (got 'udp')"),
        ("--metrics-listen nowhere", "setting metrics_listen: address 'nowhere' has no port: write host:port"),
        ("--fast-listen 10918", "setting fast_listen: address '10918' has no port: write host:port"),
        ("--topics /no/topics.json", "/no/topics.json: No such file or directory"),
        ("--listen 127.0.0.1", "setting listen: address '127.0.0.1' has no port: write host:port"),
        ("--register-name-server-period-millis 0", "setting register_name_server_period_millis: "),
        (f"--label rack={'v' * 64}", "setting label: has the key 'rack', whose value has 64 characters, at most 63"),
        ("--label rack", "setting label: 'rack' has no '='; write key=value"),
        ("--label rack=r1 --label rack=r2", "setting label: has the key 'rack' twice"),
        (" ".join(f"--label k{n}=" for n in range(MAX_LABELS + 1)), "setting label: has 17 labels, at most 16"),
        ("--tls-cert c", "tls_cert is set, but tls_key is not"),
        ("--tls-key k", "tls_key is set, but tls_cert is not"),
        ("--tls-client-ca ca", "tls_client_ca is set, but tls_cert is not"),
        ("--token-file t", "token_file is set, but tls_ca is not"),
        ("--tls-server-name n", "tls_server_name is set, but tls_ca is not"),
        ("--master-token-file t --tls-ca ca", "master_token_file is set, but not tls_ca and tls_cert"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_2(flags: str, expected: str) -> None:
    result = serve({"BROKER_AGENT_NAMESRV": "127.0.0.1:9876"}, *flags.split(" "), namesrv=None)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"broker-agent: {expected}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_list_is_the_same_in_variable_flags_and_file_and_a_flag_wins(tmp_path: Path) -> None:
    env = {"BROKER_AGENT_NAMESRV": "a:1;b:2", "BROKER_AGENT_CLUSTER": "c1", "BROKER_AGENT_LABEL": "row=7,rack=r1"}
    from_env, labels = serve(env, "--print-config", namesrv=None), 'label = ["rack=r1", "row=7"]'
    assert {'namesrv = ["a:1", "b:2"]', 'cluster = "c1"', labels} <= set(from_env.stdout.splitlines())
    from_flag = serve(
        env, *["--namesrv", "d:4", "--label", "row=7", "--label", "rack=r1", "--print-config"], cluster="c2"
    )
    assert {'namesrv = ["127.0.0.1:9876", "d:4"]', 'cluster = "c2"', labels} <= set(from_flag.stdout.splitlines())
    file = tmp_path / "agent.toml"
    file.write_text(from_env.stdout, encoding="utf-8")
    assert run("serve", "--config", str(file), "--print-config").stdout == from_env.stdout


def test_a_health_check_finds_the_agent_by_the_brokers_port(server: FakeNameServer) -> None:
    asked = [
        run("healthcheck"),
        run("healthcheck", env={"BROKER_AGENT_BROKER_ADDR": "10.0.0.1:3"}),
        run("healthcheck", "--broker-addr", "10.0.0.1:3", "--listen", "127.0.0.1:4"),
        run("healthcheck", "--fast-listen", "127.0.0.1:1"),
        run("healthcheck", "--broker-addr", "10.0.0.1:65530"),
    ]
    ports = [10918, 10, 2, 1, 10918]
    assert [result.stderr.partition(" UNAVAILABLE")[0] for result in asked] == [
        f"broker-agent: 127.0.0.1:{port}:" for port in ports
    ]
    assert {result.exit_code for result in asked} == {1}
    result = run("healthcheck", "--broker-addr", "here")
    assert (result.exit_code, result.stderr.partition(": address")[0]) == (2, "broker-agent: --broker-addr")
    no_agent = run("healthcheck", env={"BROKER_AGENT_FAST_LISTEN": str(server.endpoint)})
    assert no_agent.exit_code == 1
    assert no_agent.stderr.startswith(f"broker-agent: {server.endpoint}: there is no service broker_agent_api.v1.")
