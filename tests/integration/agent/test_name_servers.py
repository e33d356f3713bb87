"""An agent's connections to name servers: channels, what is sent over them, and one call to all at once."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

import grpc
import pytest
from broker_agent_api.v1.broker_agent_service_pb2 import NamesrvEvent as Event
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1.route_data_pb2 import REMOVAL_REASON_UNREGISTERED as UNREGISTERED
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from broker_agent import channel
from broker_agent import name_server as target_module
from broker_agent.broker_outer_api import BrokerOuterAPI, Results
from broker_agent.errors import NameServerError
from broker_agent.name_server import NamesrvTarget
from broker_agent.name_server_status import NameServerStatus
from broker_agent.observability import NameServerCalls
from broker_agent.registration import MAX_REGISTRATION_BYTES, body_crc32
from broker_agent.timing import Timing
from broker_agent.topics.table import TopicConfig
from broker_agent.topics.topic_service import version_message
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.agents import STATE, StartNameServer, registration, target_of
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually


class FanOut(ExitStack):
    """Targets for the name servers, started, with an open channel where there is a name server."""

    def __init__(self, *servers: FakeNameServer, compressed: bool = False) -> None:
        super().__init__()
        self.timing = Timing()
        self.wanted: list[NamesrvTarget] = []
        self.listed = tuple(server.endpoint for server in servers)
        self.content = registration()
        self.results: list[Results] = []
        self.api = BrokerOuterAPI(
            lambda: self.listed,
            lambda endpoint: NamesrvTarget(endpoint, "test", self.wanted.append, self.timing, compressed=compressed),
            lambda: self.content,
            TIMEOUT,
            self.timing,
            on_results=self.results.append,
        )
        self.api.follow_list(open_now=False)
        self.targets = self.api.targets

    def __enter__(self) -> Self:
        self.callback(self.api.close)
        for target in self.targets:
            target.open()
        self.wait_until_wanted(len(self.targets))
        return self

    def wait_until_wanted(self, times: int) -> None:
        """Waits until so many channels were opened, which want a registration each."""
        eventually(lambda: len(self.wanted) >= times)

    def wait_until_idle(self) -> None:
        eventually(lambda: not any(status.in_flight for status in self.api.statuses()))

    def register(
        self, *topics: TopicConfig, force: bool = False, timeout_seconds: float = TIMEOUT, counter: int = 0
    ) -> Results:
        self.content, self.api.register_seconds = registration(counter, *topics), timeout_seconds
        return self.api.register_broker_all(force=force)


@pytest.fixture
def fan_out(server: FakeNameServer) -> Iterator[FanOut]:
    """To one name server."""
    with FanOut(server) as started:
        yield started


CLOSING = pb.OpenChannelResponse(closing=pb.ChannelClosing(reason=pb.ChannelClosing.REASON_IDLE))
OPENED = pb.OpenChannelResponse(opened=pb.ChannelOpened(channel_id="other"))


@pytest.mark.parametrize("event", [CLOSING, OPENED], ids=["closing", "opened twice"])
def test_a_channel_that_ends_or_is_opened_twice_is_opened_again(
    server: FakeNameServer, fan_out: FanOut, event: pb.OpenChannelResponse
) -> None:
    server.send(event)
    fan_out.wait_until_wanted(2)
    assert server.channels_opened == 2


def test_an_event_that_is_not_known_is_passed_over(server: FakeNameServer, fan_out: FanOut) -> None:
    fan_out.register(force=True)
    server.send(pb.OpenChannelResponse())
    server.send(pb.OpenChannelResponse(order_topic_config_changed=pb.OrderTopicConfigChanged()))
    eventually(lambda: fan_out.targets[0].state.known.has_news)
    assert server.channels_opened == 1


def test_a_channel_that_stays_silent_is_opened_again(server: FakeNameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "OPENED_SECONDS", 0.1)
    server.silent_channels = 1
    with FanOut(server) as fan_out:
        assert fan_out.targets[0].state.report().channel_open
    assert server.channels_opened == 2


def test_a_defect_of_a_channel_does_not_end_its_thread(server: FakeNameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NameServerStatus, "event", lambda *_: 1 // 0)
    target = target_of(server.endpoint)
    with capture_logs() as logs:
        target.open()
        server.wait_until(lambda: server.channels_opened == 2)
        target.close()
    assert "channel_failed" in [entry["event"] for entry in logs]  # its own pause follows, and not that after a bug
    assert not target.state.report().channel_open


def test_a_flood_of_events_is_read_no_faster_than_1_000_a_second(server: FakeNameServer, fan_out: FanOut) -> None:
    begun = time.monotonic()
    for _ in range(500):
        server.send(pb.OpenChannelResponse())
    server.end_channels()
    fan_out.wait_until_wanted(2)
    assert time.monotonic() - begun >= 0.5


def test_texts_of_an_event_are_cut(server: FakeNameServer, fan_out: FanOut) -> None:
    with capture_logs() as lines:
        fan_out.register(force=True)
        lowest = pb.MinBrokerIdChanged(broker_name="b" * 1_000, min_broker_addr="a" * 1_000)
        server.send(pb.OpenChannelResponse(min_broker_id_changed=lowest))
        server.end_channels()
        fan_out.wait_until_wanted(2)
        opened, changed, ended, opened_again = fan_out.targets[0].state.report().events
    kinds = [Event.KIND_CHANNEL_OPENED, Event.KIND_MIN_BROKER_ID_CHANGED, Event.KIND_CHANNEL_ENDED]
    assert [opened.kind, changed.kind, ended.kind] == kinds
    assert (opened_again.kind, changed.detail) == (Event.KIND_CHANNEL_OPENED, f"{'b' * 255}: 0 at {'a' * 260}")
    assert [line["addr"] for line in lines if line["event"] == "min_broker_id_changed"] == ["a" * 260]


def test_a_channel_that_is_gone_is_replaced_in_the_same_round(server: FakeNameServer, fan_out: FanOut) -> None:
    server.forget_channels()
    assert len(fan_out.register(force=True)) == 1
    assert [request.channel_id for request in server.registrations] == ["ns-1", "ns-2"]


@pytest.mark.parametrize(("connect_seconds", "seconds_left"), [(0.5, 60.0), (60.0, 0.5)])
def test_without_a_channel_a_registration_waits_until_the_earlier_end(
    monkeypatch: pytest.MonkeyPatch, connect_seconds: float, seconds_left: float
) -> None:
    monkeypatch.setattr(target_module, "CONNECT_SECONDS", connect_seconds)
    nobody, begun = target_of(Endpoint("127.0.0.1", 1)), time.monotonic()
    try:
        with pytest.raises(NameServerError, match="no channel is open: UNAVAILABLE: "):
            nobody.register(registration(), begun + seconds_left)
        assert 0.5 <= time.monotonic() - begun < 30
    finally:
        nobody.close()
    assert not nobody.state.report().channel_open


def test_close_ends_a_call_in_flight_and_a_wait_for_the_channel_at_once(
    server: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "CONNECT_SECONDS", 60.0)
    server.hang()
    targets = [target_of(endpoint) for endpoint in (server.endpoint, Endpoint("127.0.0.1", 1))]
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(target.register, registration(), Timing().clock() + 60) for target in targets]
        server.wait_until(lambda: len(server.registrations) == 1)
        for target in targets:
            target.close()
        assert [type(call.exception(TIMEOUT)) for call in calls] == [NameServerError] * 2


def test_a_call_after_close_fails_as_cancelled_with_observers() -> None:
    endpoint = Endpoint("127.0.0.1", 1)
    target = target_of(endpoint, observe=NameServerCalls(CollectorRegistry(), None).of(endpoint))
    target.close()
    with pytest.raises(NameServerError, match="CANCELLED"):
        target.unregister(STATE.identity(), UNREGISTERED, Timing().clock() + TIMEOUT)


def test_no_call_is_made_when_its_time_is_over(server: FakeNameServer, fan_out: FanOut) -> None:
    with pytest.raises(NameServerError, match="the time for the whole was used up before the call"):
        fan_out.targets[0].unregister(STATE.identity(), UNREGISTERED, fan_out.timing.clock())
    assert server.unregistrations == []


def test_a_table_over_the_limit_is_not_sent_and_the_limit_named(server: FakeNameServer, fan_out: FanOut) -> None:
    topics = [TopicConfig(f"%RETRY%{number:0>110}", 16, 16, 6) for number in range(150_000)]
    for _ in range(2):
        assert fan_out.register(*topics, counter=1) == ()
    error = fan_out.targets[0].state.report().last_error
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
        with FanOut(server, compressed=compressed) as fan_out:
            assert len(fan_out.register(*topics, counter=1)) == 1
        (received,) = server.registrations
        assert received.data_version == version_message(content.version)
        assert received.topic_configs == content.full().topic_configs


# Scenarios of upstream's BrokerOuterAPITest: what comes of a call to several name servers at once.


def test_a_query_without_an_answer_leaves_time_to_register(server: FakeNameServer, fan_out: FanOut) -> None:
    fan_out.register(force=True)
    server.hang()
    round_done = threading.Thread(target=fan_out.register, kwargs={"timeout_seconds": 3.0})
    round_done.start()
    server.wait_until(lambda: len(server.registrations) == 2)
    server.answer_again()
    round_done.join(TIMEOUT)


def test_a_registration_after_one_in_flight_is_left_out_if_done(server: FakeNameServer, fan_out: FanOut) -> None:
    server.hang()
    first_round = threading.Thread(target=fan_out.register, kwargs={"force": True})
    first_round.start()
    server.wait_until(lambda: len(server.registrations) == 1)
    fan_out.api.register_broker(fan_out.targets[0])
    server.answer_again()
    first_round.join(TIMEOUT)
    fan_out.wait_until_idle()
    assert len(fan_out.results) == 1
    assert len(server.registrations) == 1


def test_an_unregistration_that_fails_ends_the_channel(server: FakeNameServer, fan_out: FanOut) -> None:
    fan_out.register(force=True)
    server.hang()
    fan_out.api.register_seconds = 1.0
    fan_out.api.unregister_broker_all()
    server.wait_until(lambda: server.channels_opened == 2)
    assert not fan_out.targets[0].state.report().registered
    server.answer_again()
    server.wait_until(lambda: list(server.open_channels) == ["ns-2"])
    assert len(server.registrations) == 1


def test_an_unregistration_that_fails_in_passing_is_tried_again(server: FakeNameServer, fan_out: FanOut) -> None:
    fan_out.register(force=True)
    server.refuse_next = [RichError(grpc.StatusCode.UNAVAILABLE, "not now", "OVERLOADED", "namesrv")]
    fan_out.api.unregister_broker_all()
    assert len(server.unregistrations) == 2
    assert server.channels_opened == 1


def test_a_hand_over_follows_the_call_in_flight(server: FakeNameServer, fan_out: FanOut) -> None:
    server.hang()
    fan_out.api.register_broker(fan_out.targets[0])
    server.wait_until(lambda: len(server.registrations) == 1)
    handing_over = threading.Thread(target=fan_out.api.hand_over_all)
    handing_over.start()
    handing_over.join(0.2)
    server.answer_again()
    handing_over.join(TIMEOUT)
    assert len(server.asked["HandOverChannel"]) == 1


def test_close_ends_the_leave_from_a_name_server_that_hangs(server: FakeNameServer, fan_out: FanOut) -> None:
    fan_out.register(force=True)
    server.hang()
    fan_out.listed = ()
    fan_out.api.follow_list()
    server.wait_until(lambda: len(server.unregistrations) == 1)
    begun = time.monotonic()
    fan_out.api.close()
    assert time.monotonic() - begun < TIMEOUT / 4


def test_a_waiting_registration_is_not_made_once_suspended(server: FakeNameServer, fan_out: FanOut) -> None:
    server.hang()
    (target,) = fan_out.targets
    for counter in (1, 2):
        fan_out.content = registration(counter)
        fan_out.api.register_broker(target)
        server.wait_until(lambda: len(server.registrations) == 1)
    fan_out.api.is_suspended = True
    server.answer_again()
    fan_out.wait_until_idle()
    assert len(server.registrations) == 1


def test_unregistering_reaches_all_in_parallel_and_has_the_generation(name_server: StartNameServer) -> None:
    hanging, first, second = name_server("hanging"), name_server("one"), name_server("two")
    with FanOut(hanging, first, second) as fan_out:
        fan_out.register(force=True)
        hanging.hang()
        fan_out.api.register_seconds = 4.0
        fan_out.api.unregister_broker_all()
        assert fan_out.register(force=True) == ()
    for server in (first, second):
        assert [(r.broker, r.generation) for r in server.unregistrations] == [(STATE.identity(), 1)]
        assert len(server.registrations) == 1


ROUND_SECONDS = 2.0
"""Time for a round in which somebody is too late: enough for all others, on a busy machine."""


def test_scenarios_62_and_64_all_that_are_healthy_or_say_changed_are_results(name_server: StartNameServer) -> None:
    servers = [name_server(name) for name in ("one", "two", "three")]
    everyone = {server.endpoint for server in servers}
    with FanOut(*servers) as fan_out:
        assert {result.endpoint for result in fan_out.register(force=True, counter=1)} == everyone
        for server in servers:
            server.version_held = None  # as after an operator's change: it answers changed=true to every agent
        assert {result.endpoint for result in fan_out.register(counter=1)} == everyone
    for server in servers:
        assert len(server.queries) == 1
        assert len(server.registrations) == 2


def test_scenarios_63_and_65_only_changed_and_in_time_is_in_the_results(name_server: StartNameServer) -> None:
    changed, unchanged, late = (name_server(name) for name in ("changed", "unchanged", "late"))
    with FanOut(late, changed, unchanged) as fan_out:
        fan_out.register(force=True, counter=1)
        changed.version_held = None
        late.hang()
        results = fan_out.register(counter=1, timeout_seconds=ROUND_SECONDS)
        assert [result.endpoint for result in results] == [changed.endpoint]
        assert (len(changed.registrations), len(unchanged.registrations), len(unchanged.queries)) == (2, 1, 1)
        late.answer_again()
        fan_out.wait_until_idle()
        late.hang()
        results = fan_out.register(force=True, counter=2, timeout_seconds=ROUND_SECONDS)
        late.answer_again()
        eventually(lambda: late.version_held is not None and late.version_held.counter == 2)
        assert {result.endpoint for result in results} == {changed.endpoint, unchanged.endpoint}
