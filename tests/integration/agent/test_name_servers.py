"""An agent's connections to name servers: channels, calls, one call to all at once, and the list from a web server."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPException
from itertools import pairwise
from socketserver import StreamRequestHandler, ThreadingTCPServer
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
from broker_agent.namesrv_list import FETCH_PERIOD_SECONDS, MAX_LIST_BYTES, namesrv_list_of
from broker_agent.namesrv_list import address_server as address_server_at
from broker_agent.observability import NameServerCalls
from broker_agent.registration import body_crc32
from broker_agent.timing import JITTER, Timing
from broker_agent.topics.table import TopicConfig
from broker_agent.topics.topic_service import version_message
from namesrv_common.endpoints import Endpoint, parse_endpoints
from namesrv_common.grpc_errors import RichError
from tests.support.agents import STATE, StartNameServer, registration, target_of
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually
from tests.support.virtual_clock import VirtualClock, agent_timing


class FanOut(ExitStack):
    """Targets for the name servers, started, with an open channel where there is a name server."""

    def __init__(self, *servers: FakeNameServer, compressed: bool = False) -> None:
        super().__init__()
        # With this seed, a second pause in a row is longer than any first one.
        self.timing = Timing(rng=random.Random(5), wait=self._wait)
        self.waits: list[float] = []
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

    def _wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        return event.wait(seconds)

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


@pytest.mark.parametrize(
    ("last", "why"),
    [(CLOSING, "closed by the name server: REASON_IDLE"), (OPENED, "the name server opened it twice")],
)
def test_events_are_taken_until_the_channel_ends_and_another_opens(
    server: FakeNameServer, fan_out: FanOut, last: pb.OpenChannelResponse, why: str
) -> None:
    fan_out.register(force=True)
    lowest = pb.MinBrokerIdChanged(broker_name="b" * 1_000, min_broker_addr="a" * 1_000)
    ordered = pb.OpenChannelResponse(order_topic_config_changed=pb.OrderTopicConfigChanged())
    unknown = pb.OpenChannelResponse()
    with capture_logs() as lines:
        for event in (unknown, ordered, pb.OpenChannelResponse(min_broker_id_changed=lowest), last):
            server.send(event)
        fan_out.wait_until_wanted(2)
    assert server.channels_opened == 2
    state = fan_out.targets[0].state
    assert state.known.has_news
    events = state.report().events
    kinds = [Event.Kind.Name(event.kind).removeprefix("KIND_") for event in events]
    taken = ["CHANNEL_OPENED", "ORDER_TOPIC_CONFIG_CHANGED", "MIN_BROKER_ID_CHANGED"]
    assert kinds == [*taken, "CHANNEL_ENDED", "CHANNEL_OPENED"]
    assert (events[2].detail, events[3].detail) == (f"{'b' * 255}: 0 at {'a' * 260}", why)
    assert [line["addr"] for line in lines if line["event"] == "min_broker_id_changed"] == ["a" * 260]


def test_a_channel_that_is_silent_or_gone_is_replaced(server: FakeNameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "OPENED_SECONDS", 0.5)
    server.silent_channels = 1
    with FanOut(server) as fan_out:
        assert fan_out.targets[0].state.report().channel_open
        server.forget_channels()
        assert len(fan_out.register(force=True)) == 1
    assert [request.channel_id for request in server.registrations] == ["ns-2", "ns-3"]


def test_the_pause_before_a_channel_is_short_again_once_registered(server: FakeNameServer, fan_out: FanOut) -> None:
    for opened in (2, 3, 4):
        if opened == 4:
            fan_out.register(force=True)
        server.end_channels()
        fan_out.wait_until_wanted(opened)
    first, second, after_registration = fan_out.waits
    assert max(first, after_registration) <= 0.2 < second <= 0.4


def test_a_defect_of_a_channel_does_not_end_its_thread(server: FakeNameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NameServerStatus, "event", lambda *_: 1 // 0)
    target = target_of(server.endpoint)
    with capture_logs() as logs:
        target.open()
        server.wait_until(lambda: server.channels_opened == 2)
        target.close()
    assert "channel_failed" in [entry["event"] for entry in logs]  # its own pause follows, and not that after a bug
    assert not target.state.report().channel_open


def test_a_flood_of_events_is_read_no_faster_than_1_000_a_second(
    server: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "OPENED_SECONDS", 0.2)  # a channel that is open stays so for longer
    with FanOut(server) as fan_out:
        begun = time.monotonic()
        for _ in range(500):
            server.send(pb.OpenChannelResponse())
        server.end_channels()
        fan_out.wait_until_wanted(2)
        assert time.monotonic() - begun >= 0.5


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


def test_no_call_is_made_when_its_time_is_over_or_after_close(server: FakeNameServer) -> None:
    target = target_of(server.endpoint, observe=NameServerCalls(CollectorRegistry(), None).of(server.endpoint))
    with pytest.raises(NameServerError, match="the time for the whole was used up before the call"):
        target.unregister(STATE.identity(), UNREGISTERED, Timing().clock())
    target.close()
    with pytest.raises(NameServerError, match="CANCELLED"):
        target.unregister(STATE.identity(), UNREGISTERED, Timing().clock() + TIMEOUT)
    assert server.unregistrations == []


def test_a_table_over_the_limit_is_not_sent_and_the_limit_named(
    server: FakeNameServer, fan_out: FanOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [TopicConfig(f"T{number}", 4, 4, 6) for number in range(10)]
    size = registration(1, *topics).full().ByteSize() + len("\n\x04ns-1")  # the id of the channel
    monkeypatch.setattr(target_module, "MAX_REGISTRATION_BYTES", size - 1)
    assert fan_out.register(*topics, counter=1) == ()
    assert server.registrations == []
    problem = f"the registration of 10 topics has {size} bytes, over the limit of {size - 1}"
    assert problem in fan_out.targets[0].state.report().last_error


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


@pytest.mark.parametrize(
    ("counter", "suspended", "made"), [(2, False, 2), (1, False, 1), (2, True, 1)], ids=["new", "done", "suspended"]
)
def test_a_registration_behind_another_is_made_unless_done_or_suspended(
    server: FakeNameServer, fan_out: FanOut, counter: int, made: int, *, suspended: bool
) -> None:
    server.hang()
    for content in (registration(1), registration(counter)):
        fan_out.content = content
        fan_out.api.register_broker(fan_out.targets[0])
        server.wait_until(lambda: len(server.registrations) == 1)
    fan_out.api.is_suspended = suspended
    server.answer_again()
    fan_out.wait_until_idle()
    assert (len(fan_out.results), len(server.registrations), server.queries) == (made, made, [])


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
    with capture_logs() as logs:
        fan_out.api.close()
    (failed,) = (line for line in logs if line["event"] == "unregister_failed")
    assert "CANCELLED" in failed["error"], "its own time was not over"


def test_an_unregistration_that_fails_is_tried_again_or_ends_the_channel(name_server: StartNameServer) -> None:
    hanging, other = name_server("hanging"), name_server("other")
    with FanOut(hanging, other) as fan_out:
        fan_out.register(force=True)
        hanging.hang()
        fan_out.content, fan_out.api.register_seconds = registration(1), TIMEOUT / 20
        fan_out.api.register_broker(fan_out.targets[0])  # the unregistration follows it
        hanging.wait_until(lambda: len(hanging.registrations) == 2)
        fan_out.api.register_seconds = TIMEOUT / 5
        other.refuse_next = [RichError(grpc.StatusCode.UNAVAILABLE, "not now", "OVERLOADED", "namesrv")]
        fan_out.api.unregister_broker_all()
        assert fan_out.register(force=True) == ()
        hanging.wait_until(lambda: hanging.channels_opened == 2)
        assert not fan_out.targets[0].state.report().registered
        hanging.answer_again()
        hanging.wait_until(lambda: list(hanging.open_channels) == ["hanging-2"])
    for server, times in ((hanging, 1), (other, 2)):
        assert [(r.broker, r.generation) for r in server.unregistrations] == [(STATE.identity(), 1)] * times
    assert (other.channels_opened, len(hanging.registrations), len(other.registrations)) == (1, 2, 1)


ROUND_SECONDS = TIMEOUT / 10
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
        assert len(late.registrations) == 2, "the query had half of the time"
        late.answer_again()
        fan_out.wait_until_idle()
        late.hang()
        results = fan_out.register(force=True, counter=2, timeout_seconds=ROUND_SECONDS)
        late.answer_again()
        eventually(lambda: late.version_held is not None and late.version_held.counter == 2)
        assert {result.endpoint for result in results} == {changed.endpoint, unchanged.endpoint}


# An address server: asked after 10 s, then every 120 s. An invalid answer is ignored.

WHOLE = b"10.0.0.1:9876;10.0.0.2:9876"
CHUNKED = "Transfer-Encoding: chunked"
A_PERIOD = FETCH_PERIOD_SECONDS * (1 + JITTER)


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer over HTTP, with the right Content-Length if no header is said."""
    lines = [f"HTTP/1.1 {status}", *(headers or [f"Content-Length: {len(body)}"]), "", ""]
    return "\r\n".join(lines).encode() + body


class Asked(StreamRequestHandler):
    server: AddressServer

    def handle(self) -> None:
        request, *_headers = iter(self.rfile.readline, b"\r\n")
        self.server.asked.append((self.server.time.seconds, request))
        self.wfile.write(self.server.answer)


class AddressServer(ThreadingTCPServer):
    """Answers as told, on loopback. It remembers what it was asked and when, and what a list on virtual time told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.answer = answer(WHOLE)
        self.time = VirtualClock(0.0)
        self.asked: list[tuple[float, bytes]] = []
        self.told: list[tuple[Endpoint, ...]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/rocketmq/nsaddr?unit=a"
        self.list = namesrv_list_of(["10.0.9.9:9876", self.url], timing=agent_timing(self.time))
        self.list.start()
        self.list.on_change = lambda: self.told.append(self.list.endpoints)

    def read(self) -> tuple[Endpoint, ...]:
        """Asks it without the list."""
        return address_server_at(self.url, Timing()).read()


@pytest.fixture
def address_server() -> Iterator[AddressServer]:
    with AddressServer() as started, ThreadPoolExecutor(1) as pool:
        pool.submit(started.serve_forever, 0.01)
        yield started
        started.list.stop()
        started.shutdown()


def test_it_is_asked_after_10_s_then_every_120_and_faults_keep_the_list(address_server: AddressServer) -> None:
    with capture_logs() as logs:
        address_server.time.run(9.9)
        assert address_server.asked == []
        address_server.time.run(0.1)
        assert address_server.asked == [(10.0, b"GET /rocketmq/nsaddr?unit=a HTTP/1.1\r\n")]
        address_server.time.run(100 * FETCH_PERIOD_SECONDS)
        address_server.answer = answer(b"1\r\n", CHUNKED)
        address_server.time.run(2 * A_PERIOD)
        address_server.answer = answer(WHOLE)
        address_server.time.run(A_PERIOD)
        address_server.shutdown()
        address_server.server_close()
        address_server.time.run(A_PERIOD)
    pauses = [after - before for (before, _), (after, _) in pairwise(address_server.asked)]
    assert 97 <= len(pauses) <= 108
    assert 108.0 <= min(pauses) < 120.0 < max(pauses) <= 132.0
    bad = ("namesrv_list_bad", ["10.0.0.1:9876", "10.0.0.2:9876"])
    said = [(entry["event"], entry.get("kept")) for entry in logs if entry["event"] != "namesrv_list"]
    assert said == [bad, ("namesrv_list_ok", None), bad]
    assert address_server.told == [parse_endpoints("10.0.0.1:9876 10.0.0.2:9876")]


CHUNKS = b"5\r\n%s\r\n%x\r\n%s\r\n" % (WHOLE[:5], len(WHOLE) - 5, WHOLE[5:])


@pytest.mark.parametrize("good", [answer(WHOLE), answer(WHOLE + b";\n"), answer(CHUNKS + b"0\r\n\r\n", CHUNKED)])
def test_an_answer_of_a_declared_length_or_in_chunks_is_read(address_server: AddressServer, good: bytes) -> None:
    address_server.answer = good
    assert address_server.read() == parse_endpoints("10.0.0.1:9876 10.0.0.2:9876")


@pytest.mark.parametrize(
    ("problem", "bad"),
    [
        ("has no port", answer(b"<html><body>Welcome</body></html>")),
        ("more than 65536 bytes: 65537 are declared", answer(b" " * (MAX_LIST_BYTES + 1))),
        ("answered 302, not 200", answer(WHOLE, "Location: /elsewhere", status="302 Found")),
        ("the answer was cut after 26 of 27 bytes", answer(WHOLE)[:-1]),
        ("neither Content-Length nor chunks", answer(WHOLE, "X-Nothing: ")),
        ("neither Content-Length nor chunks", answer(WHOLE, "Content-Length: -1")),
        ("IncompleteRead", answer(CHUNKS, CHUNKED)),
        ("more than 65536 bytes", answer(b"fffffff\r\n" + b" " * (MAX_LIST_BYTES + 1), CHUNKED)),
    ],
)
def test_an_answer_that_may_be_cut_or_is_no_list_is_refused(
    address_server: AddressServer, problem: str, bad: bytes
) -> None:
    address_server.answer = bad
    with pytest.raises((ValueError, HTTPException), match=problem):
        address_server.read()
