"""An agent from its start to its end, its health and its status."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from broker_agent.broker_controller import BrokerController
from broker_agent.broker_probe import BrokerProbe
from broker_agent.errors import StartError
from broker_agent.listener import SERVICE_NAME
from broker_agent.timing import RegistrationSchedule
from tests.support.agents.fixtures import MakeSettings, StartNameServer
from tests.support.agents.running_agent import Agent, StartAgent, agent
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import TOPICS
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock

__all__ = ["agent"]  # pytest finds the fixture by its name in this module

IMPATIENT = {"register_name_server_period_millis": 1_000}
"""For those that wait for a name server which is not there."""
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def health_of(controller: BrokerController, service: str = "") -> int:
    with grpc.insecure_channel(str(controller.fast_listening_on)) as connection:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(connection).Check(request, timeout=TIMEOUT).status)


def test_force_register_sends_the_table_each_period(name_server: StartNameServer, agent: StartAgent) -> None:
    server = name_server()
    with agent(server, force_register=True) as running:
        running.rounds.due(2)
        server.wait_until(lambda: len(server.registrations) == 3)
    assert server.queries == []


def test_a_late_name_server_is_registered_with_at_once(name_server: StartNameServer, agent: StartAgent) -> None:
    late = name_server("not yet")
    late.stop()
    with agent(late, **IMPATIENT) as running:
        controller = running.controller
        assert health_of(controller) == health_of(controller, SERVICE_NAME) == NOT_SERVING
        late = name_server("late", late.endpoint.port)
        late.wait_until(lambda: len(late.registrations) == 1)
        with grpc.insecure_channel(str(controller.fast_listening_on)) as connection:
            watch = health_pb2_grpc.HealthStub(connection).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
            assert next(answer.status for answer in watch if answer.status == SERVING)
        assert health_of(controller, SERVICE_NAME) == SERVING


def test_a_step_of_the_stop_that_fails_stops_no_other(
    name_server: StartNameServer, agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_probe: BrokerProbe) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(BrokerProbe, "stop", fail)
    server = name_server()
    with capture_logs() as lines, agent(server):
        pass
    assert len(server.unregistrations) == 1
    assert [line["step"] for line in lines if line["event"] == "shutdown_step_failed"] == ["probe"]
    assert lines[-1]["event"] == "agent_stopped"


def test_health_ends_before_the_broker_is_unregistered(name_server: StartNameServer, agent: StartAgent) -> None:
    server = name_server()
    with agent(server) as running:
        with grpc.insecure_channel(str(running.controller.fast_listening_on)) as connection:
            watch = health_pb2_grpc.HealthStub(connection).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
            assert next(watch).status == SERVING
            server.hang()
            stopping = threading.Thread(target=running.controller.stop)
            stopping.start()
            assert next(watch).status == NOT_SERVING
            server.wait_until(lambda: len(server.unregistrations) == 1)
            server.answer_again()
            running.rounds.due()
        stopping.join(TIMEOUT)


def test_the_status_shows_broker_and_name_servers(name_server: StartNameServer, agent: StartAgent) -> None:
    up, down = name_server("up"), name_server("down")
    down.stop()
    up.master_addr, up.ha_server_addr = "10.0.0.9:10911", "10.0.0.9:10912"
    followed = {"topics_mode": "follow", "topics": TOPICS}
    with agent(up, down, broker_id=1, label=["rack=r1"], **followed, **IMPATIENT) as running:
        status = running.status()
    assert (status.cluster_name, status.broker_name, status.broker_id) == ("DefaultCluster", "broker-a", 1)
    assert (status.topic_count, status.data_version.counter) == (11, 3)
    assert status.data_version.timestamp_millis == 1651398321850
    assert not status.HasField("ha_server_addr")
    assert dict(status.labels) == {"rack": "r1"}
    assert (status.master_addr, status.master_ha_server_addr) == ("10.0.0.9:10911", "10.0.0.9:10912")
    assert [(target.namesrv_name, target.registered) for target in status.targets] == [("up", True), ("", False)]
    assert "Connection refused" in status.targets[1].last_error


@pytest.mark.parametrize("setting", ["listen", "fast_listen", "metrics_listen"])
def test_a_port_in_use_is_a_clear_error(name_server: StartNameServer, settings: MakeSettings, setting: str) -> None:
    taken = name_server().endpoint
    with pytest.raises(StartError) as raised:
        # Unless it is said, the fast listener's port is two below the other's, which may be taken as well.
        Agent(settings(**{"fast_listen": "127.0.0.1:0", setting: str(taken)}))
    assert str(raised.value) == f"setting {setting}: cannot listen on {taken}: Address already in use"


# What an agent sends while nothing happens: next to nothing, however many topics its broker has.

MANY_TOPICS = 10_000
TEN_HOURS = 36_000.0


class TenHours(RegistrationSchedule):
    """The usual schedule on virtual time, which passes as fast as rounds can be made, and stops after ten hours."""

    def __init__(self) -> None:
        self.time = VirtualClock()
        super().__init__(30.0, agent_timing(self.time))
        self._end = self.time.seconds + TEN_HOURS
        self.over = threading.Event()

    def next_delay(self) -> float:
        self.time.advance(super().next_delay())
        if self.time.seconds < self._end:
            return 0.0
        self.over.set()
        return TEN_HOURS


def many_topics(folder: Path) -> Path:
    file = folder / "topics.json"
    queues = {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
    topics = {f"Topic-{i:05}": queues for i in range(MANY_TOPICS)}
    file.write_text(json.dumps({"dataVersion": {"timestamp": 1, "counter": 1}, "topicConfigTable": topics}))
    return file


def test_an_idle_agent_sends_its_table_only_at_its_start(
    name_server: StartNameServer, settings: MakeSettings, tmp_path: Path
) -> None:
    server = name_server()
    schedule = TenHours()
    controller = Agent(settings(server, topics=many_topics(tmp_path)), server, schedule=schedule).controller
    controller.start()
    try:
        assert schedule.over.wait(100)
    finally:
        controller.stop()
    assert [len(request.topic_configs) for request in server.registrations] == [MANY_TOPICS]
    assert 1_190 <= len(server.queries) <= 1_210  # one each 30 s
