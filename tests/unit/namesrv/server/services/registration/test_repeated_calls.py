"""Repeated heartbeats: answered as if each were looked at as a whole, whatever has become of the broker."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.app.channels import ChannelStreams
from namesrv.app.counters import RegistrationCounter
from namesrv.app.stall_detector import StallDetector
from namesrv.app.writer import TableWriter
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import DataVersion, LiveKey
from namesrv.engines.api import Again
from namesrv.grpc_api.registration import RegistrationServicer
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.fakes.engine_call import FakeEngineCall
from tests.support.registrations import data_version, identity

KEY = LiveKey(CLUSTER, A)
HEARTBEAT = pb.BrokerHeartbeatRequest(broker=identity(A))


def question(counter: int = 1) -> pb.QueryDataVersionRequest:
    return pb.QueryDataVersionRequest(broker=identity(A), data_version=data_version(counter))


class _World:
    def __init__(self) -> None:
        self.fleet = Fleet()
        state, clock = self.fleet.state, self.fleet.clock
        detector = StallDetector(clock.monotonic, self.fleet.heartbeats.grant_more_time, 10.0)
        channels = ChannelStreams(state, TableWriter(), detector)
        self.tally = RegistrationCounter()
        self.servicer = RegistrationServicer(state, TableWriter(), channels, 120_000, tally=self.tally)

    def call(self, request: Any) -> tuple[bytes | None, Again | None]:
        """The answer, None if there is no such broker; and what answers the call when it comes again."""
        context: Any = FakeEngineCall()
        beats = isinstance(request, pb.BrokerHeartbeatRequest)
        answer = self.servicer.BrokerHeartbeat if beats else self.servicer.QueryDataVersion
        try:
            return asyncio.run(cast("Any", answer)(request, context)), context.again
        except Refused as error:
            if error.reason != Reason.BROKER_NOT_REGISTERED:
                raise
            return None, context.again

    def renew(self) -> int | None:
        return self.fleet.state.last_seen().get(KEY)

    def known(self, request: Any) -> Again:
        again = self.call(request)[1]
        assert again is not None
        return again

    def do(self, step: str) -> None:
        fleet = self.fleet
        match step:
            case "register":
                fleet.register(A)
            case "register another version":
                fleet.register(A, version=DataVersion(1_000, 2))
            case "register another id":
                fleet.register(A, 1)
            case "register another name":
                fleet.register(A, name="broker-b")
            case "another address takes its id":
                fleet.register(B)
            case "topic by topic":
                fleet.register(A, topic_by_topic=True)
            case "another topic changes":
                number = fleet.state.revision
                fleet.register(B, name="broker-c", topics=(f"Topic{number}",), version=DataVersion(1_000, number))
            case "unregister":
                fleet.unregister(A)
            case _:
                raise AssertionError(step)


STEPS = (
    "register",
    "register another version",
    "register another id",
    "register another name",
    "another address takes its id",
    "topic by topic",
    "another topic changes",
    "unregister",
)


@given(st.lists(st.sampled_from(STEPS), max_size=12))
def test_again_it_does_what_the_whole_call_does_or_nothing(steps: list[str]) -> None:
    world = _World()
    world.do("register")
    known = [(request, world.known(request)) for request in (HEARTBEAT, question())]
    for step in steps:
        world.do(step)
        for at, (request, again) in enumerate(known):
            world.fleet.clock.advance(1.0)
            before, counted = world.renew(), sum(world.tally.counts.values())
            answer, heard = again(), world.renew()
            if answer is None:
                assert (heard, sum(world.tally.counts.values())) == (before, counted)
            expected, more = world.call(request)
            if answer is not None:
                assert (answer, heard) == (expected, world.renew())
            known[at] = request, more or again


@pytest.mark.parametrize("request_", [HEARTBEAT, question()], ids=["heartbeat", "question"])
def test_what_concerns_other_brokers_leaves_it_known_and_the_answer_tells_of_the_revision(request_: Any) -> None:
    world = _World()
    world.do("register")
    again = world.known(request_)
    for _ in range(3):
        before = again()
        world.do("another topic changes")
        assert again() not in (None, before)
        assert again() == world.call(request_)[0]


def test_what_comes_again_counts_as_it_did_the_first_time() -> None:
    world = _World()
    world.do("register")
    heartbeat, query = world.known(HEARTBEAT), world.known(question())
    before = dict(+world.tally.counts)
    assert before == {("heartbeat", "unchanged"): 1, ("query", "unchanged"): 1}
    assert heartbeat()
    assert query()
    assert +world.tally.counts == dict.fromkeys(before, 2)


def test_a_broker_that_is_kept_alive_by_what_comes_again_outlives_its_timeout_and_no_longer() -> None:
    world = _World()
    world.fleet.register(A, timeout_seconds=10.0)
    again = world.known(HEARTBEAT)
    for _ in range(5):
        world.fleet.clock.advance(9.0)
        assert again()
        assert not world.fleet.scan()
    world.fleet.clock.advance(10.5)
    assert [removed.live.key for removed in world.fleet.scan()] == [KEY]


def test_a_question_whose_answer_is_a_registration_is_not_known() -> None:
    world = _World()
    world.do("register")
    assert world.call(question(counter=2))[1] is None
    assert world.call(pb.BrokerHeartbeatRequest(broker=identity(B)))[1] is None
