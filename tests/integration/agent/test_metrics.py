"""Metrics of an agent, and its answers over HTTP to whether it is alive and ready."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
from broker_agent_api.v1 import client_service_pb2
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub

from tests.support import metrics_page
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent, free_port, joined, name_servers
from tests.support.programs.processes import TOPICS, eventually

METRICS = ("--metrics-listen", "127.0.0.1:0")


def get(agent: Agent, path: str) -> tuple[int, str]:
    return metrics_page.get(agent.wait_for("agent_started")["metrics"], path)


def samples(agent: Agent) -> dict[tuple[str, ...], float]:
    """Values by name, without its prefix, and label values."""
    found = metrics_page.samples(agent.wait_for("agent_started")["metrics"])
    return {(name.removeprefix("broker_agent_"), *labels): value for (name, *labels), value in found.items()}


def test_each_name_server_and_all_clients_have_their_series() -> None:
    with name_servers(1) as [(server, _)], free_port() as nobody, Agent(joined(server, nobody), *METRICS) as agent:
        good, bad = str(server.endpoint), str(nobody)
        groups = [client_service_pb2.ProducerData(group_name=name) for name in ("p1", "p2")]
        with grpc.insecure_channel(str(agent.wait_for("agent_started")["listening_on"])) as connection:
            request = client_service_pb2.HeartbeatRequest(client_id="c1", producer_groups=groups)
            ClientServiceStub(connection).Heartbeat(request, timeout=TIMEOUT)
        eventually(lambda: samples(agent), lambda seen: seen["registered", good] == 1)
        seen = eventually(lambda: samples(agent), lambda seen: ("registrations_total", bad, "full", "failed") in seen)
        assert seen["registrations_total", good, "full", "accepted"] >= 1
        assert seen["registration_age_seconds", good] >= 0
        assert ("registration_age_seconds", bad) not in seen
        assert seen["registered", bad] == 0
        assert seen["broker_up",] == 1
        assert (seen["producer_groups",], seen["producers",], seen["consumers",]) == (2, 2, 0)
        assert seen["topics",] == len(json.loads(TOPICS.read_text())["topicConfigTable"])
        assert get(agent, "/readyz") == (200, "ok\n")
        assert get(agent, "/healthz") == (200, "ok\n")


def test_a_name_server_that_leaves_the_list_loses_its_series(tmp_path: Path) -> None:
    with name_servers(2) as [(first, _), (second, _)]:
        file = tmp_path / "name-servers"
        file.write_text(f"{first.endpoint};{second.endpoint}")
        with Agent(f"file:{file}", *METRICS) as agent:
            register = "namesrv_api.v1.RegistrationService/RegisterBroker"
            ended = {
                ("grpc_client_call_duration_seconds_count", register, "OK", str(server.endpoint))
                for server in (first, second)
            }
            eventually(lambda: ended <= samples(agent).keys())
            file.write_text(str(first.endpoint))
            gone = str(second.endpoint)
            eventually(lambda: all(gone not in labels for labels in samples(agent)))
            assert any(str(first.endpoint) in labels for labels in samples(agent))
            assert second.wait_for("broker_removed")["reason"] == "UNREGISTERED"
            file.write_text("not;a;list\n")
            agent.wait_for("namesrv_list_bad")
            assert first.events("broker_removed") == []


def test_an_agent_that_nobody_has_accepted_is_alive_and_not_ready() -> None:
    with free_port() as nobody, Agent(str(nobody), *METRICS, "--register-name-server-period-millis", "1000") as agent:
        assert get(agent, "/healthz") == (200, "ok\n")
        assert get(agent, "/readyz") == (503, "no name server has accepted the registration yet\n")


def test_a_followed_file_that_stays_broken_shows_in_metrics_and_status(tmp_path: Path) -> None:
    topics = tmp_path / "topics.json"
    with (
        name_servers(1) as [(server, client)],
        Agent(str(server.endpoint), *METRICS, "--topics-missing", "wait", topics=topics) as agent,
        agent.connect() as calls,
    ):
        assert eventually(lambda: client.route("TBW102"), lambda route: route is not None)
        topics.write_text("{")
        eventually(lambda: samples(agent)["topics_broken",], lambda broken: broken == 1)
        assert calls.status().topics_problem
