"""What an agent knows of a name server, the call that follows from it, its retries, and the pauses between channels."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import broker_agent_service_pb2 as pb
from namesrv_api.v1 import registration_service_pb2 as channel_pb
from prometheus_client import CollectorRegistry

from broker_agent.channel import Reopening
from broker_agent.errors import NameServerError
from broker_agent.name_server import CallRetries
from broker_agent.name_server_status import Call, Known, NameServerStatus, next_call
from broker_agent.observability import NameServerCalls
from broker_agent.registration import Registration
from broker_agent.timing import Timing
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.agents import STATE, registration, topic
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


UNAVAILABLE = RichError(grpc.StatusCode.UNAVAILABLE, "no connection")


def test_answers_are_counted_and_say_how_old_and_whose_the_registration_is() -> None:
    clock, error = VirtualClock(), NameServerError(UNAVAILABLE)
    status = NameServerStatus(Endpoint("127.0.0.1", 9876), agent_timing(clock))

    def accept(channel_id: str | None) -> None:
        status.channel_id = channel_id
        response = channel_pb.RegisterBrokerResponse(generation=1)
        status.accepted(OLD, pb.REGISTRATION_KIND_FULL, channel_pb.RegisterBrokerRequest(channel_id="1"), response)

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
    status.refused(NEW, pb.REGISTRATION_KIND_INCREMENT, error)
    status.not_sent(pb.REGISTRATION_KIND_INCREMENT, error)
    assert status.counts == {
        (pb.REGISTRATION_KIND_FULL, "accepted"): 4,
        (pb.REGISTRATION_KIND_INCREMENT, "failed"): 2,
        (pb.REGISTRATION_KIND_QUERY, "unchanged"): 1,
        (pb.REGISTRATION_KIND_QUERY, "changed"): 2,
        (pb.REGISTRATION_KIND_QUERY, "failed"): 1,
    }
    report = status.report()
    assert (report.full_registration_count, report.increment_count, report.generation) == (4, 0, 1)


class Attempts:
    """Virtual time, a call that fails as told, and the waits between its attempts."""

    def __init__(self, *errors: RichError) -> None:
        self.clock = VirtualClock(0.0)
        self.count = 0
        self.waits: list[float] = []
        self.stopping = threading.Event()
        self._errors = list(errors)
        self._retries = CallRetries(replace(agent_timing(self.clock), wait=self._wait), self.stopping)

    def run(self, deadline: float = 6.0) -> str:
        return self._retries.run(self._call, deadline)

    def _call(self) -> str:
        self.count += 1
        if self._errors:
            raise NameServerError(self._errors.pop(0))
        return "answer"

    def _wait(self, stopping: threading.Event, seconds: float) -> bool:
        assert stopping is self.stopping
        self.waits.append(seconds)
        self.clock.advance(seconds)
        return stopping.is_set()


def test_an_unavailable_name_server_is_tried_again_with_growing_waits() -> None:
    attempts = Attempts(*[UNAVAILABLE] * 4)
    assert attempts.run() == "answer"
    assert attempts.count == 5
    for wait, step in zip(attempts.waits, [0.1, 0.2, 0.4, 0.8], strict=True):
        assert step / 2 <= wait <= step


def test_no_attempt_begins_after_the_deadline_or_once_the_agent_stops() -> None:
    attempts = Attempts(*[UNAVAILABLE] * 100)
    with pytest.raises(NameServerError, match="no connection"):
        attempts.run(deadline=6.0)
    assert 3.0 < attempts.clock.seconds < 6.0
    before = attempts.count
    attempts.stopping.set()
    with pytest.raises(NameServerError):
        attempts.run(deadline=60.0)
    assert attempts.count == before + 1


@pytest.mark.parametrize(
    "error",
    [
        RichError(grpc.StatusCode.INVALID_ARGUMENT, "bad", "INVALID_FIELD"),
        RichError(grpc.StatusCode.FAILED_PRECONDITION, "old", "STALE_STATE_VERSION"),
        RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, "large", "LIMIT_EXCEEDED"),
        RichError(grpc.StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN"),
        RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "late"),
    ],
    ids=lambda error: error.reason or error.code.name,
)
def test_what_cannot_succeed_a_moment_later_is_not_tried_again(error: RichError) -> None:
    attempts = Attempts(error)
    with pytest.raises(NameServerError):
        attempts.run()
    assert attempts.count == 1


def test_an_overloaded_name_server_is_left_alone_for_as_long_as_it_asks() -> None:
    attempts = Attempts(RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", "OVERLOADED", retry_after_seconds=3.0))
    assert attempts.run() == "answer"
    assert attempts.waits == [3.0]


def test_a_defect_is_not_taken_for_a_passing_fault() -> None:
    retries = CallRetries(Timing(), threading.Event())
    with pytest.raises(ZeroDivisionError):
        retries.run(lambda: 1 // 0, deadline=float("inf"))


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


class Unavailable(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


class Traces:
    """An exporter of spans, and what it is told."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str, grpc.StatusCode]] = []

    def sent(self, method: str, target: str, metadata: dict[str, str]) -> Callable[[grpc.StatusCode], None]:
        metadata["traceparent"] = "1"
        return lambda code: self.ended.append((method, target, code))


def test_calls_are_counted_timed_and_traced_until_their_name_server_leaves() -> None:
    registry, traces, endpoint = CollectorRegistry(), Traces(), Endpoint("127.0.0.1", 9876)
    telemetry: Any = traces
    calls = NameServerCalls(registry, telemetry)
    observe = calls.of(endpoint)
    with observe(channel_pb.OpenChannelRequest()) as metadata:
        assert metadata == (), "a stream has no span"
    for error in (Unavailable(), ValueError("the channel is closed")):
        with pytest.raises(type(error)), observe(channel_pb.QueryDataVersionRequest()) as metadata:
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
    codes_of_spans = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED]
    assert traces.ended == [(f"{service}/QueryDataVersion", target, code) for code in codes_of_spans]
    with observe(channel_pb.OpenChannelRequest()):
        calls.forget(endpoint)
    with observe(channel_pb.OpenChannelRequest()):
        pass
    assert [sample for family in registry.collect() for sample in family.samples] == [], "not even of its last call"
    with NameServerCalls(CollectorRegistry(), None).of(endpoint)(channel_pb.QueryDataVersionRequest()) as metadata:
        assert metadata == (), "without telemetry"
