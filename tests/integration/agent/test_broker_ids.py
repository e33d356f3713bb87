"""Two agents that claim one broker id: both are told, and they do not take it from each other forever."""

from __future__ import annotations

from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from structlog.testing import capture_logs

from broker_agent.name_server import NamesrvTarget
from tests.support.agents.fan_out_harness import FanOut, topic
from tests.support.agents.fixtures import StartNameServer
from tests.support.fakes.registering_name_server import FakeNameServer

OTHER = "10.0.0.2:10911"
Event = agent_pb.NamesrvEvent


def lose_to_other(server: FakeNameServer) -> None:
    """Another address registers under the broker's id."""
    server.version_held, server.members = None, {0: OTHER}


def events(target: NamesrvTarget) -> list[agent_pb.NamesrvEvent.Kind]:
    return [event.kind for event in target.status().events]


def test_a_broker_whose_id_was_taken_says_so_and_leaves_it_to_the_other(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out, capture_logs() as logs:
        fan_out.register(topic("A"), counter=1)
        lose_to_other(server)
        for counter in (1, 1, 2):
            assert fan_out.register(topic("A"), counter=counter) == ()
        status = fan_out.targets[0].status()
    assert len(server.registrations) == 1
    assert (status.broker_id_held_by, status.registered) == (OTHER, False)
    assert [event.kind for event in status.events] == [
        Event.KIND_CHANNEL_OPENED,
        Event.KIND_REGISTRATION_LOST,
        Event.KIND_BROKER_ID_TAKEN,
    ]
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["broker_id_taken"]


def test_whoever_starts_takes_the_id_and_says_from_whom(name_server: StartNameServer) -> None:
    server = name_server()
    server.members = {0: OTHER}
    with FanOut(server) as fan_out:
        assert len(fan_out.register(counter=1)) == 1
        assert Event.KIND_BROKER_ID_REPLACED in events(fan_out.targets[0])


def test_a_slave_with_another_id_in_the_group_takes_nothing(name_server: StartNameServer) -> None:
    server = name_server()
    server.members = {1: OTHER}
    with FanOut(server) as fan_out:
        fan_out.register(counter=1)
        assert events(fan_out.targets[0]) == [Event.KIND_CHANNEL_OPENED]
