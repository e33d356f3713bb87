"""Agents and name servers of every kind: whatever one of them does, the others are registered with as if alone."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.integration.agent.topics.topics_writer import as_registered, table
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.programs.agents import (
    EXACTLY,
    NEVER_SCAN,
    Agent,
    AgentClient,
    free_port,
    joined,
    name_servers,
    topics_of,
)
from tests.support.programs.processes import NamesrvProcess, eventually

GARBAGE = bytes(range(256)) * 16
UNAVAILABLE = RichError(grpc.StatusCode.UNAVAILABLE, "not now", "OVERLOADED", "namesrv")


@contextmanager
def http_service(answer: bytes) -> Iterator[Endpoint]:
    """An HTTP server on loopback that answers everything the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Endpoint("127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def garbage_service() -> Iterator[Endpoint]:
    """Sends bytes that are no HTTP/2 to whoever connects."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.sendall(GARBAGE)
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Endpoint("127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def last_error(agent: AgentClient, endpoint: Endpoint) -> str:
    """What is wrong with a name server, in the agent's status."""
    return agent.target(endpoint).last_error


def test_a_name_server_that_answers_garbage_or_is_another_service_hurts_no_other() -> None:
    with (
        name_servers(1) as [(server, client)],
        http_service(b"<html>Welcome</html>") as http,
        garbage_service() as garbage,
        Agent(str(server.endpoint)) as other_agent,  # speaks gRPC, but is no name server
        Agent(joined(server, http, garbage, other_agent.endpoint), broker_addr="127.0.0.1:10912") as agent,
        agent.connect() as status,
    ):
        eventually(client.addrs, lambda addrs: addrs == {0: "127.0.0.1:10912"})
        for endpoint in (http, garbage, other_agent.endpoint):
            eventually(partial(last_error, status, endpoint))
            assert not status.target(endpoint).registered
        assert "UNIMPLEMENTED" in status.target(other_agent.endpoint).last_error
        assert status.target(server.endpoint).registered
        # Each is complained about once, however often it is tried.
        complaints = [line["endpoint"] for line in agent.events("not_registered")]
        assert sorted(complaints) == sorted(map(str, (http, garbage, other_agent.endpoint)))
        assert agent.terminate() == 0


def test_name_servers_that_are_stopped_dead_busy_or_slow_do_not_delay_the_healthy_one() -> None:
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


def test_the_list_in_a_file_is_followed_and_a_name_server_that_is_taken_out_is_unregistered_from(
    tmp_path: Path,
) -> None:
    file = tmp_path / "name-servers"
    with name_servers(3) as [(first, of_first), (second, of_second), (third, of_third)]:
        file.write_text(f"{first.endpoint}\n{second.endpoint}\n")
        with Agent(f"file:{file}") as agent, agent.connect() as status:
            for client in (of_first, of_second):
                eventually(client.addrs)
            file.write_text(f"# first is retired\n{second.endpoint}\n{third.endpoint}\n")
            eventually(of_third.addrs)
            eventually(of_first.route, lambda route: route is None)
            assert first.wait_for("broker_removed")["reason"] == "UNREGISTERED"
            assert of_second.addrs()
            assert second.events("broker_removed") == []
            expected = {str(second.endpoint), str(third.endpoint)}
            eventually(lambda: {target.endpoint for target in status.status().targets}, lambda held: held == expected)
            file.write_text("not;a;list\n")
            eventually(lambda: agent.events("namesrv_list_bad"))
            assert {target.endpoint for target in status.status().targets} == expected
            assert agent.terminate() == 0
        assert of_second.route() is None
        assert of_third.route() is None


def test_an_agent_that_only_has_an_address_server_registers_once_that_has_answered() -> None:
    with name_servers(2) as servers:
        addresses = joined(*(server for server, _ in servers))
        with (
            http_service(addresses.encode()) as http,
            Agent(f"http://{http}/rocketmq/nsaddr"),
        ):
            for _, client in servers:
                eventually(client.addrs)  # first asked after 10 s


def test_a_name_server_that_restarts_has_the_whole_table_though_it_changed_meanwhile(tmp_path: Path) -> None:
    topics = tmp_path / "topics.json"
    topics.write_text(table(1))
    with (
        NamesrvProcess(*NEVER_SCAN, *EXACTLY) as steady,
        NamesrvProcess(*NEVER_SCAN, *EXACTLY) as doomed,
        steady.connect() as client,
        Agent(joined(steady, doomed), topics=topics) as agent,
        agent.connect() as status,
    ):
        eventually(lambda: status.target(doomed.endpoint).registered)
        doomed.kill()
        eventually(lambda: not status.target(doomed.endpoint).registered)
        topics.write_text(table(2))
        eventually(lambda: topics_of(client), lambda held: held == as_registered(table(2)))
        with NamesrvProcess(*NEVER_SCAN, *EXACTLY, port=doomed.endpoint.port) as again, again.connect() as at_again:
            eventually(lambda: topics_of(at_again), lambda held: held == as_registered(table(2)))
        assert agent.terminate() == 0


def test_an_agent_starts_though_no_name_server_can_be_reached() -> None:
    with free_port() as nobody, Agent(str(nobody), "--register-name-server-period-millis", "1000") as agent:
        assert agent.events("agent_started")
        assert agent.terminate() == 0


@pytest.mark.parametrize("compressed", ["--compressed-register", "--no-compressed-register"])
def test_scenario_68_a_table_of_10000_topics_arrives_plain_and_compressed(tmp_path: Path, compressed: str) -> None:
    file = tmp_path / "topics.json"
    queues = {"readQueueNums": 8, "writeQueueNums": 4, "perm": 6}
    topics = {f"Topic-{number:05}": queues for number in range(10_000)}
    file.write_text(json.dumps({"dataVersion": {"timestamp": 1_000, "counter": 7}, "topicConfigTable": topics}))
    with (
        name_servers(1) as [(server, client)],
        Agent(str(server.endpoint), compressed, topics=file) as agent,
        agent.connect() as status,
    ):
        assert topics_of(client) == dict.fromkeys(topics, (8, 4, 6))
        target = status.target(server.endpoint)
        assert (target.full_registration_count, target.last_topic_count) == (1, 10_000)
        [live] = [row for message in client.snapshot() for row in message.chunk.live_brokers]
        assert (live.data_version.timestamp_millis, live.data_version.counter) == (1_000, 7)
