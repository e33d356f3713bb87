"""What a name server is sent: a question, an increment, a refresh, or everything."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import grpc
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from namesrv_api.v1 import registration_service_pb2 as pb
from structlog.testing import capture_logs

from broker_agent.name_server import NamesrvTarget
from broker_agent.registration import MAX_REGISTRATION_BYTES, body_crc32
from broker_agent.topics.table import TopicConfig
from tests.support.agents.fan_out_harness import OPTIONS, FanOut, registration, topic
from tests.support.agents.fixtures import StartNameServer
from tests.support.fakes.registering_name_server import FakeNameServer

# What a name server is sent: a question, an increment, a refresh, or everything.


def sent(request: pb.RegisterBrokerRequest) -> tuple[int | None, list[str]]:
    """Counter of the base of an increment, None for a whole table; and the topics."""
    base = request.base_version.counter if request.HasField("base_version") else None
    return base, [config.topic for config in request.topic_configs]


def kinds(target: NamesrvTarget) -> list[agent_pb.NamesrvEvent.Kind]:
    return [event.kind for event in target.status().events]


def test_news_of_ordered_topics_are_fetched_by_an_empty_increment_once(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out:
        fan_out.register(topic("A"), counter=1)
        target = fan_out.targets[0]
        server.order_topic_config = {"A": "broker-a:4"}
        target.state.news()
        (result,) = fan_out.register(topic("A"), counter=1)
        assert target.status().last_kind == agent_pb.REGISTRATION_KIND_REFRESH
        assert fan_out.register(topic("A"), counter=1) == ()
    assert result.order_topic_config == {"A": "broker-a:4"}
    assert [sent(request) for request in server.registrations[1:]] == [(1, [])]


def test_a_table_of_any_size_that_name_servers_take_is_one_message(name_server: StartNameServer) -> None:
    topics = [TopicConfig(f"%RETRY%{number:0>100}", 16, 16, 6) for number in range(100_000)]
    server = name_server()
    with FanOut(server) as fan_out:
        assert len(fan_out.register(*topics, counter=1)) == 1
        status = fan_out.targets[0].status()
    assert [len(request.topic_configs) for request in server.registrations] == [100_000]
    assert status.last_topic_count == 100_000


def test_a_table_over_the_limit_is_not_sent_and_the_limit_named(name_server: StartNameServer) -> None:
    topics = [TopicConfig(f"%RETRY%{number:0>110}", 16, 16, 6) for number in range(150_000)]
    server = name_server()
    with FanOut(server) as fan_out:
        assert fan_out.register(*topics, counter=1) == ()
        error = fan_out.targets[0].status().last_error
        assert fan_out.register(*topics, counter=1) == ()
    assert server.registrations == []
    assert "registration of 150000 topics has" in error
    assert f"over the limit of {MAX_REGISTRATION_BYTES}" in error


def test_every_message_has_the_crc32_of_its_topics() -> None:
    message = registration(1, TopicConfig("A", 4, 8, 6, 1), TopicConfig("Ü", 0, 0, 0)).full()
    assert message.body_crc32 == zlib.crc32("A 4 8 6 1\nÜ 0 0 0 0\n".encode()) == body_crc32(message.topic_configs)


def test_scenario_68_10_000_topics_survive_plain_and_compressed(name_server: StartNameServer) -> None:
    rng = random.Random(68)
    topics = [TopicConfig(f"T{n}", rng.randrange(17), rng.randrange(17), rng.randrange(8)) for n in range(10_000)]
    content = registration(1, *topics)
    for compressed in (False, True):
        server = name_server()
        with FanOut(server, options=replace(OPTIONS, compressed_register=compressed)) as fan_out:
            assert len(fan_out.register(*topics, counter=1)) == 1
        (received,) = server.registrations
        assert received.data_version == content.query().data_version
        assert received.topic_configs == content.full().topic_configs


def test_registrations_are_compressed_only_if_the_setting_says_so(name_server: StartNameServer) -> None:
    for compressed, expected in ((False, None), (True, grpc.Compression.Gzip)):
        Compressions.seen.clear()
        options = replace(OPTIONS, compressed_register=compressed)
        with FanOut(name_server(), options=options, target_class=Compressions) as fan_out:
            fan_out.register(counter=1)
            fan_out.register(counter=1)
        assert Compressions.seen == {"GetBrokerMemberGroup": None, "RegisterBroker": expected, "QueryDataVersion": None}


class Compressions(NamesrvTarget):
    """Remembers how its calls are compressed."""

    seen: ClassVar[dict[str, grpc.Compression | None]] = {}

    def _call(self, method: Any, request: Any, deadline: float, compression: grpc.Compression | None = None) -> Any:
        self.seen[type(request).__name__.removesuffix("Request")] = compression
        return super()._call(method, request, deadline, compression)


def test_observers_see_each_call_and_its_end(name_server: StartNameServer) -> None:
    seen: list[tuple[str, str]] = []

    def observe(method: str, _metadata: dict[str, str], *, streams: bool) -> Callable[[grpc.StatusCode], None] | None:
        name = method.removeprefix("namesrv_api.v1.")
        return None if streams else lambda code: seen.append((name, code.name))

    with FanOut(name_server(), observers=[observe]) as fan_out:
        fan_out.register(counter=1)
        fan_out.register(counter=1)
    assert seen == [
        ("RouteService/GetBrokerMemberGroup", "OK"),
        ("RegistrationService/RegisterBroker", "OK"),
        ("RegistrationService/QueryDataVersion", "OK"),
    ]


# Two agents that claim one broker id: both are told, and they do not take it from each other forever.

OTHER = "10.0.0.2:10911"
Event = agent_pb.NamesrvEvent


def lose_to_other(server: FakeNameServer) -> None:
    """Another address registers under the broker's id."""
    server.version_held, server.members = None, {0: OTHER}


def test_a_broker_whose_id_was_taken_says_so_and_leaves_it_to_the_other(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out, capture_logs() as logs:
        fan_out.register(topic("A"), counter=1)
        lose_to_other(server)
        for counter in (1, 1, 2):
            assert fan_out.register(topic("A"), counter=counter) == ()
        target = fan_out.targets[0]
    assert len(server.registrations) == 1
    assert (target.status().broker_id_held_by, target.status().registered) == (OTHER, False)
    assert kinds(target) == [Event.KIND_CHANNEL_OPENED, Event.KIND_REGISTRATION_LOST, Event.KIND_BROKER_ID_TAKEN]
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["broker_id_taken"]


def test_whoever_starts_takes_the_id_and_says_from_whom(name_server: StartNameServer) -> None:
    server = name_server()
    server.members = {0: OTHER}
    with FanOut(server) as fan_out:
        assert len(fan_out.register(counter=1)) == 1
        assert Event.KIND_BROKER_ID_REPLACED in kinds(fan_out.targets[0])


def test_a_slave_with_another_id_in_the_group_takes_nothing(name_server: StartNameServer) -> None:
    server = name_server()
    server.members = {1: OTHER}
    with FanOut(server) as fan_out:
        fan_out.register(counter=1)
        assert kinds(fan_out.targets[0]) == [Event.KIND_CHANNEL_OPENED]
