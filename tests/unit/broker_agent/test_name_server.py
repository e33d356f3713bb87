"""What an agent knows of a name server, the calls that follow from it, their retries, and pauses between channels."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from grpc import StatusCode as Code
from grpc.aio import AioRpcError, Metadata
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_service_pb2
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from broker_agent.channel import Reopening
from broker_agent.errors import NameServerError
from broker_agent.name_server import CallRetries, NamesrvTarget
from broker_agent.name_server_status import (
    FIRST_REFUSED_SECONDS,
    LONGEST_REFUSED_SECONDS,
    Call,
    Known,
    NameServerStatus,
    next_call,
)
from broker_agent.observability import NameServerCalls
from broker_agent.registration import Registration
from broker_agent.timing import Timing
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.properties import Machine, machine_test
from tests.support.agents import STATE, PassingClock, registration, topic
from tests.support.virtual_clock import VirtualClock, agent_timing

# What an agent knows of a name server, the call that follows from it, and its retries.

OLD, NEW = registration(1, topic("A")), registration(2, topic("A"), topic("B"))
SLAVE = replace(STATE, broker_id=1)
OLD_SLAVE = registration(1, topic("A"), state=SLAVE)
HELD = Known(held=OLD, generation=7, claims_id=False, id_doubtful=False)


@pytest.mark.parametrize(
    ("known", "wanted", "call"),
    [
        (HELD, OLD, Call.QUERY_VERSION),
        (HELD, NEW, Call.SEND_CHANGES),
        (HELD, registration(0, topic("A"), topic("B")), Call.SEND_CHANGES),  # an older version is another one
        (HELD, registration(2, topic("A"), state=SLAVE), Call.SEND_ALL),
        (HELD, registration(2), Call.SEND_ALL),  # an increment cannot remove a topic
        (HELD, registration(1, topic("A"), state=replace(STATE, permission=4)), Call.SEND_ALL),
        (replace(HELD, held=OLD_SLAVE), OLD_SLAVE, Call.SEND_CHANGES),  # its answer names the master
        (replace(HELD, held=None), OLD, Call.SEND_ALL),
        (replace(HELD, held=None, id_doubtful=True), OLD, Call.FIND_HOLDER),
        (replace(HELD, held=None, id_doubtful=True, claims_id=True), OLD, Call.SEND_ALL),
    ],
)
def test_the_next_call_follows_from_what_is_known(known: Known, wanted: Registration, call: Call) -> None:
    assert next_call(known, wanted, now=0.0) is call


def refused(reason: str, code: Code = Code.FAILED_PRECONDITION, **more: Any) -> NameServerError:
    return NameServerError(RichError(code, "no connection", reason, **more))


UNAVAILABLE = refused("", Code.UNAVAILABLE)


def test_answers_are_counted_and_say_how_old_and_whose_the_registration_is() -> None:
    clock = VirtualClock()
    status = NameServerStatus(Endpoint("127.0.0.1", 9876), agent_timing(clock))

    def accept(channel_id: str | None) -> None:
        status.channel_id = channel_id
        response = pb.RegisterBrokerResponse(generation=1)
        status.accepted(OLD, agent_pb.REGISTRATION_KIND_FULL, pb.RegisterBrokerRequest(channel_id="1"), response)

    ages = [status.confirmed_seconds_ago]
    accept("1")
    clock.advance(30)
    ages.append(status.confirmed_seconds_ago)
    status.version_answered("ns", changed=False, holds_any=True)
    clock.advance(7)
    status.version_not_answered()
    status.channel_ended("gone", was_open=True)
    ages.append(status.confirmed_seconds_ago)
    assert ages == [None, 30, 7]
    for holds_any in (True, False):
        accept("1")
        status.version_answered("ns", changed=True, holds_any=holds_any)
        assert status.known.held is None
        assert status.known.id_doubtful is not holds_any, "one that lost the broker may have given its id away"
    accept(None)
    assert status.known.held is None
    status.refused(NEW, agent_pb.REGISTRATION_KIND_INCREMENT, UNAVAILABLE)
    status.not_sent(agent_pb.REGISTRATION_KIND_INCREMENT, UNAVAILABLE)
    assert status.counts == {
        (agent_pb.REGISTRATION_KIND_FULL, "accepted"): 4,
        (agent_pb.REGISTRATION_KIND_INCREMENT, "failed"): 2,
        (agent_pb.REGISTRATION_KIND_QUERY, "unchanged"): 1,
        (agent_pb.REGISTRATION_KIND_QUERY, "changed"): 2,
        (agent_pb.REGISTRATION_KIND_QUERY, "failed"): 1,
    }
    report = status.report()
    assert (report.full_registration_count, report.increment_count, report.generation) == (4, 0, 1)


def test_a_table_refused_for_good_waits_twice_as_long_each_time() -> None:
    clock, error = VirtualClock(), refused("LIMIT_EXCEEDED")
    status = NameServerStatus(Endpoint("127.0.0.1", 9876), agent_timing(clock))
    for seconds in (60, 120, 240, 480, 960, 1_920, 3_600, 3_600):
        status.refused(OLD, agent_pb.REGISTRATION_KIND_FULL, error)
        for pause, call in ((seconds - 1, Call.NONE), (1, Call.FIND_HOLDER)):
            clock.advance(pause)
            assert next_call(status.known, OLD, clock.seconds) is call


class Attempts(PassingClock):
    """Attempts of a call that fails as told. Their waits are the pauses of this clock."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__(0.0)
        self.stopping = threading.Event()
        self._errors = list(errors)

    def outcome(self, deadline: float = 6.0) -> str:
        return CallRetries(agent_timing(self), self.stopping).run(self._call, deadline)

    def _call(self) -> str:
        if self._errors:
            raise self._errors.pop(0)
        return "answer"

    def wait(self, event: threading.Event, seconds: float) -> bool:
        assert event is self.stopping
        return super().wait(event, seconds)


def test_an_unavailable_name_server_is_tried_again_with_growing_waits() -> None:
    attempts = Attempts(*[UNAVAILABLE] * 4)
    assert attempts.outcome() == "answer"
    for wait, step in zip(attempts.pauses, [0.1, 0.2, 0.4, 0.8], strict=True):
        assert step / 2 <= wait <= step


def test_an_overloaded_name_server_is_left_alone_for_as_long_as_it_asks() -> None:
    attempts = Attempts(refused("OVERLOADED", Code.RESOURCE_EXHAUSTED, retry_after_seconds=3.0))
    assert attempts.outcome() == "answer"
    assert attempts.pauses == [3.0]


def test_no_attempt_begins_after_the_deadline_or_once_the_agent_stops() -> None:
    attempts = Attempts(*[UNAVAILABLE] * 100)
    with pytest.raises(NameServerError, match="no connection"):
        attempts.outcome(deadline=6.0)
    assert 3.0 < attempts.seconds < 6.0
    before = attempts.seconds
    attempts.stopping.set()
    with pytest.raises(NameServerError):
        attempts.outcome(deadline=60.0)
    assert attempts.seconds == before


@pytest.mark.parametrize(
    "error",
    [
        refused("INVALID_FIELD", Code.INVALID_ARGUMENT),
        refused("STALE_STATE_VERSION"),
        refused("LIMIT_EXCEEDED", Code.RESOURCE_EXHAUSTED),
        refused("SHUTTING_DOWN", Code.UNAVAILABLE),
        refused("", Code.DEADLINE_EXCEEDED),
        ZeroDivisionError("a defect"),
    ],
    ids=str,
)
def test_what_cannot_succeed_a_moment_later_is_not_tried_again(error: Exception) -> None:
    attempts = Attempts(error)
    with pytest.raises(type(error)):
        attempts.outcome()
    assert attempts.pauses == []


# The pauses between channels.


def test_the_wait_doubles_up_to_5_s_until_a_registration_succeeds() -> None:
    waits = [Reopening(30.0, Timing(rng=random.Random(seed))) for seed in range(300)]
    for longest in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        seen = [wait.next_wait(shutting_down=False) for wait in waits]
        assert 0.1 <= min(seen) < 0.6 * longest
        assert 0.9 * longest < max(seen) <= longest
    for wait in waits:
        wait.succeeded()
    assert max(wait.next_wait(shutting_down=False) for wait in waits) <= 0.2
    spread = [wait.next_wait(shutting_down=True) for wait in waits]
    assert 0.1 <= min(spread) < 0.5, "it is anything up to the longest once a name server says that it goes"
    assert 4.5 < max(spread) <= 5.0
    assert max(Counter(map(int, spread)).values()) < 90, "not all agents come back in the same second"


def test_calls_are_counted_timed_and_traced_until_their_name_server_leaves() -> None:
    registry, spans, endpoint = CollectorRegistry(), list[tuple[str, str, Code]](), Endpoint("127.0.0.1", 9876)

    def sent(method: str, target: str, metadata: dict[str, str]) -> Callable[[Code], None]:
        metadata["traceparent"] = "1"
        return lambda code: spans.append((method, target, code))

    telemetry: Any = SimpleNamespace(sent=sent)
    calls = NameServerCalls(registry, telemetry)
    observe = calls.of(endpoint)
    with observe(pb.OpenChannelRequest()) as metadata:
        assert metadata == (), "a stream has no span"
    unavailable = AioRpcError(Code.UNAVAILABLE, Metadata(), Metadata(), None, None)
    for error in (unavailable, ValueError("the channel is closed")):
        with pytest.raises(type(error)), observe(pb.QueryDataVersionRequest()) as metadata:
            raise error
        assert metadata == (("traceparent", "1"),)
    service, target = "namesrv_api.v1.RegistrationService", "127.0.0.1:9876"
    for method, codes in (("OpenChannel", ["OK"]), ("QueryDataVersion", ["UNAVAILABLE", "CANCELLED"])):
        labels = {"grpc_method": f"{service}/{method}", "grpc_target": target}
        assert registry.get_sample_value("grpc_client_attempt_started_total", labels) == len(codes)
        for code in codes:
            for name in ("attempt", "call"):
                duration = f"grpc_client_{name}_duration_seconds_count"
                assert registry.get_sample_value(duration, {**labels, "grpc_status": code}) == 1
    assert spans == [(f"{service}/QueryDataVersion", target, code) for code in (Code.UNAVAILABLE, Code.CANCELLED)]
    with observe(pb.OpenChannelRequest()):
        calls.forget(endpoint)
    with observe(pb.OpenChannelRequest()):
        pass
    assert [sample for family in registry.collect() for sample in family.samples] == [], "not even of its last call"
    with NameServerCalls(CollectorRegistry(), None).of(endpoint)(pb.QueryDataVersionRequest()) as metadata:
        assert metadata == (), "without telemetry"


# Whatever happens between two rounds: what a name server holds of the broker after a round is what the agent has. The
# agent leaves out what it knows to be useless: a table that was refused for good, and an id that another agent holds.

Event = agent_pb.NamesrvEvent
OTHER = "10.0.0.9:10911"
"""The address of another agent's broker, which has the same id."""


class NameServer:
    """What a name server holds, and what it refuses."""

    def __init__(self) -> None:
        self.channel_id: str | None = "1"
        self.holder: str | None = None
        """The address that holds the broker's id."""
        self.held: dict[str, int] = {}
        """Queues by topic."""
        self.version: Any = None
        self.refuses: set[str] = set()
        """Names of topics with which a table is refused for good."""
        self.is_full = False
        """Whether it has no capacity for the next registration, whatever that is."""
        self.sends_news = False
        """Whether news come over the channel before the answer to the next registration, which does not have them."""
        self.registrations = 0
        """Calls, refused ones among them."""
        self.refusals = 0
        """Calls that were refused for good."""
        self.refused_increments = 0
        """Calls with the changes of a table that it does not hold."""

    def forget(self, holder: str | None = None) -> None:
        self.holder, self.held, self.version = holder, {}, None

    def register(self, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerResponse:
        self.registrations += 1
        if request.channel_id != self.channel_id:
            raise refused("CHANNEL_GONE")
        if request.HasField("base_version") and (self.version is None or self.version != request.base_version):
            self.refused_increments += 1
            raise refused("NEED_FULL_REGISTRATION")
        topics = {config.topic: config.read_queue_nums for config in request.topic_configs}
        if self.is_full:
            self.is_full = False
            raise refused("LIMIT_EXCEEDED", metadata={"caller": "your address"})
        after = {**self.held, **topics} if request.HasField("base_version") else topics
        if self.refuses & after.keys():
            self.refusals += 1
            raise refused("LIMIT_EXCEEDED")
        self.held = after
        self.version, self.holder = request.data_version, request.broker.broker_addr
        return pb.RegisterBrokerResponse(generation=self.registrations)

    def query(self, request: pb.QueryDataVersionRequest) -> pb.QueryDataVersionResponse:
        return pb.QueryDataVersionResponse(changed=self.version != request.data_version, data_version=self.version)

    def members(self) -> route_service_pb2.GetBrokerMemberGroupResponse:
        response = route_service_pb2.GetBrokerMemberGroupResponse()
        response.broker_data.broker_addrs.add(broker_id=STATE.broker_id + 1, broker_addr=OTHER)
        if self.holder is not None:
            response.broker_data.broker_addrs.add(broker_id=STATE.broker_id, broker_addr=self.holder)
        return response


class Target(NamesrvTarget):
    """Calls the name server without a connection. Of its calls, at most registrations are compressed."""

    def __init__(self, server: NameServer, timing: Timing, *, compressed: bool) -> None:
        super().__init__(Endpoint("127.0.0.1", 1), "test", lambda _: None, timing, compressed=compressed)
        self._server = server
        self._compressed = {pb.RegisterBrokerRequest} if compressed else set()

    def open(self) -> None:
        """Nothing: the channel is the machine's."""

    def _call(self, method: Any, request: Any, deadline: float, compression: Any = None) -> Any:
        assert compression == (grpc.Compression.Gzip if type(request) in self._compressed else None)
        if isinstance(request, pb.RegisterBrokerRequest):
            if self._server.sends_news:
                self.state.news()
            return self._server.register(request)
        return (
            self._server.query(request) if isinstance(request, pb.QueryDataVersionRequest) else self._server.members()
        )


class RoundsAgainstANameServer(Machine):
    outcomes = frozenset(
        {
            "left after a refused increment",
            "left to another",
            "no room",
            "nothing to do",
            "refused before",
            "refreshed",
            "refused for good",
            "registered",
            "taken from another",
            "tried again",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.clock = PassingClock()
        self.timing = agent_timing(self.clock)
        self.server = NameServer()
        self.retries = CallRetries(self.timing, threading.Event())
        self.channels = 1
        self.topics = {"A": 4}
        self.counter = 0
        self.said: list[str] | None = None
        """What the log says of the last round; None before the first one."""
        self.is_claiming = True
        """Whether the agent shall take the id from another one: it has a new channel or a new role."""
        self.knows_of_other = False
        """Whether the agent has seen that its registration went."""
        self.has_news = False
        """Whether the name server has said that the answer to a registration has news."""
        self.refused: tuple[int, int] | None = None
        """The version of the table that was refused for good over the present channel, and how often in turn."""
        self.refused_until = 0.0

    @initialize(holder=st.sampled_from([None, OTHER]), compressed=st.booleans())
    def start(self, holder: str | None, *, compressed: bool) -> None:
        self.server.holder = holder
        self.target = Target(self.server, self.timing, compressed=compressed)
        self.target.state.channel_opened("1")
        self.round(force=False)
        assert self.kinds() == ([] if holder is None else [Event.KIND_BROKER_ID_REPLACED])

    def kinds(self) -> list[Event.Kind]:
        news = Event.KIND_ORDER_TOPIC_CONFIG_CHANGED
        return [event.kind for event in self.target.state.report().events if event.kind != news]

    def now(self) -> Registration:
        return registration(self.counter, *(topic(name, queues) for name, queues in sorted(self.topics.items())))

    @rule(name=st.sampled_from("ABC"), queues=st.sampled_from([None, 4, 8]))
    def topics_change(self, name: str, queues: int | None) -> None:
        before = dict(self.topics)
        self.topics.pop(name, None)
        if queues is not None:
            self.topics[name] = queues
        self.counter += self.topics != before

    @rule(names=st.sets(st.sampled_from("ABC")), forces=st.lists(st.booleans(), max_size=3))
    def some_topics_are_refused_from_now_on(self, names: set[str], forces: list[bool]) -> None:
        self.server.refuses = set(names)
        self.rounds(forces=forces, pause=0.0)

    @rule()
    def there_is_no_room_for_one(self) -> None:
        self.server.is_full = True

    @rule(seconds=st.sampled_from([1.0, FIRST_REFUSED_SECONDS, 2 * FIRST_REFUSED_SECONDS, LONGEST_REFUSED_SECONDS]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def the_channel_ends_and_another_one_opens(self) -> None:
        self.target.state.channel_ended("it ended", was_open=True)
        self.channels += 1
        self.server.channel_id = str(self.channels)
        if self.server.holder != OTHER:
            self.server.forget()
        self.target.state.channel_opened(self.server.channel_id)
        self.is_claiming, self.refused = True, None

    @rule()
    def the_name_server_forgets_the_broker(self) -> None:
        self.server.forget()

    @rule(forces=st.lists(st.booleans(), max_size=3), queues=st.sampled_from([4, 8]))
    def another_agent_takes_the_id(self, forces: list[bool], queues: int) -> None:
        self.topics_change("A", queues)
        self.server.forget(OTHER)
        self.rounds(forces=forces, pause=0.0)

    @rule()
    def the_ordered_topics_change(self) -> None:
        self.target.state.news()
        self.has_news = True

    @rule()
    def the_ordered_topics_change_during_the_next_registration(self) -> None:
        self.server.sends_news = True

    @rule()
    def the_broker_has_a_new_role(self) -> None:
        self.target.state.claim_id()
        self.is_claiming = True

    @rule(forces=st.lists(st.booleans(), min_size=2, max_size=4), pause=st.sampled_from([0.0, FIRST_REFUSED_SECONDS]))
    def rounds(self, forces: list[bool], pause: float) -> None:
        for force in forces:
            self.round(force=force)
            self.clock.advance(pause)

    @rule(force=st.booleans())
    def round(self, force: bool) -> None:
        held, before, now = self.target.state.known.held, self.server.registrations, self.clock.seconds
        content, kinds = self.now(), self.kinds()
        is_same = not force and content.same_as(held)
        asks, refreshes = is_same and not self.has_news, is_same and self.has_news
        may_be_left = not self.is_claiming and self.server.holder == OTHER
        refusals, is_full, refused_before = self.server.refusals, self.server.is_full, self.server.refused_increments
        was_registered = self.target.state.report().registered
        with capture_logs() as logs:
            self.target.synchronize(content, now + 60.0, self.retries, force=force)
        self.each_change_is_logged_once([entry["event"] for entry in logs], was_registered)
        sent, found_no_room = self.server.registrations - before, is_full and not self.server.is_full
        needs_all = self.server.refused_increments > refused_before
        assert not needs_all or Event.KIND_NEED_FULL_REGISTRATION in self.kinds()[-2:]
        if self.refused is not None and self.refused[0] == self.counter and now < self.refused_until:
            assert sent == 0, "it was refused a short while ago"
            self.reaches("refused before")
        elif self.server.refusals > refusals:
            times = self.refused[1] + 1 if self.refused is not None and self.refused[0] == self.counter else 0
            self.refused = self.counter, times
            self.refused_until = now + min(FIRST_REFUSED_SECONDS * 2**times, LONGEST_REFUSED_SECONDS)
            self.reaches("tried again" if times else "refused for good")
        elif may_be_left and (asks or self.knows_of_other):
            assert sent == 0, "another agent has the id"
            assert not self.knows_of_other or self.kinds() == kinds, "it is said once"
            self.it_is_left_to_the_other()
        elif may_be_left and self.server.holder == OTHER and not found_no_room:
            self.it_is_left_to_the_other()
            if needs_all:
                self.reaches("left after a refused increment")
        elif asks and not sent:
            self.reaches("nothing to do")
            assert (self.server.held, self.server.holder) == (self.topics, STATE.broker_addr)
        elif found_no_room:
            self.reaches("no room")
        else:
            assert sent
            assert not (may_be_left and needs_all), "the name server was not asked who has the id"
            self.reaches("taken from another" if may_be_left else "registered")
            self.it_is_registered()
            assert not asks or self.kinds()[-1] == Event.KIND_REGISTRATION_LOST
            if refreshes and sent == 1:
                status = self.target.state.report()
                assert (status.last_kind, status.last_topic_count) == (agent_pb.REGISTRATION_KIND_REFRESH, 0)
                self.reaches("refreshed")

    def each_change_is_logged_once(self, events: list[str], was_registered: bool) -> None:
        is_first, is_registered = self.said is None, self.target.state.report().registered
        self.said = [event for event in events if event in {"registered", "not_registered", "broker_id_taken"}]
        if is_registered == was_registered and not is_first:
            assert self.said in ([], ["broker_id_taken"])
        else:
            assert (len(self.said), "registered" in self.said) == (1, is_registered)

    def it_is_left_to_the_other(self) -> None:
        assert self.server.holder == OTHER
        status = self.target.state.report()
        assert (status.broker_id_held_by, status.registered) == (OTHER, False)
        assert self.knows_of_other or self.kinds()[-1] == Event.KIND_BROKER_ID_TAKEN
        assert self.said == ([] if self.knows_of_other else ["broker_id_taken"])
        self.knows_of_other = True
        self.reaches("left to another")

    def it_is_registered(self) -> None:
        assert (self.server.held, self.server.holder) == (self.topics, STATE.broker_addr)
        assert self.target.state.report().registered
        self.is_claiming = self.knows_of_other = False
        self.has_news, self.server.sends_news = self.server.sends_news, False

    def teardown(self) -> None:
        self.target.close()


TestRoundsAgainstANameServer = machine_test(RoundsAgainstANameServer, 100, steps=30)
