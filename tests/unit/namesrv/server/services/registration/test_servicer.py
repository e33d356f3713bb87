"""RegistrationService: channels, registrations that are read before they wait, repeated heartbeats, and limits."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.app.access import Admission, Entered, FairShares, NamedBrokers, sharer_of
from namesrv.app.counters import RegistrationCounter
from namesrv.app.field_rules import ADDRESS, check
from namesrv.app.writer import INLINE_TOPICS, TableWriter
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import BrokerKey, DataVersion, LiveKey, RemovalReason
from namesrv.core.removals import unregister_broker
from namesrv.engines.api import Again
from namesrv.grpc_api.registration import RegistrationServicer
from namesrv_common.endpoints import MAX_ADDRESS_LENGTH
from namesrv_common.server.shares import MACHINE
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.fakes.engine_call import FakeEngineCall
from tests.support.refusals import refuses
from tests.support.registrations import data_version, identity, registration
from tests.unit.namesrv.servicers import holding, registration_servicer, until


@pytest.fixture
def servicer() -> RegistrationServicer:
    return registration_servicer(Fleet())


def test_an_open_channel_does_not_keep_its_request(servicer: RegistrationServicer) -> None:
    async def run() -> tuple[int, int]:
        request = pb.OpenChannelRequest(holder="a broker")
        before = sys.getrefcount(request)
        async with aclosing(servicer.OpenChannel(request, CONTEXT)) as stream:  # type: ignore[type-var]
            await anext(stream)
            return before, sys.getrefcount(request)

    before, while_open = asyncio.run(run())
    assert while_open == before


def test_a_handover_without_a_channel_is_told_that_it_needs_one(servicer: RegistrationServicer) -> None:
    with refuses(Reason.INVALID_FIELD) as caught:
        asyncio.run(servicer.HandOverChannel(pb.HandOverChannelRequest(), CONTEXT))
    assert caught.value.text == "channel_id: is missing; a handover is of a channel"


LARGE = [f"T{number}" for number in range(3 * INLINE_TOPICS)]


class NameServer:
    """A servicer whose writer can be kept busy."""

    def __init__(self, fleet: Fleet, registered_topics: int = 1_000) -> None:
        shares = FairShares(registered_topics=registered_topics)
        self.writer = TableWriter()
        self._servicer = registration_servicer(fleet, self.writer, registered_topics=shares.registered_topics)

    async def register(self, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerResponse:
        return await self._servicer.RegisterBroker(request, CONTEXT)


async def test_a_bad_registration_is_refused_while_others_wait_for_their_turn(fleet: Fleet) -> None:
    namesrv = NameServer(fleet)
    async with holding(namesrv.writer, fleet.state):
        with refuses(Reason.INVALID_FIELD, match=r"topic_configs\[0\].topic"):
            await namesrv.register(registration(["not\ta name"]))
    assert fleet.state.revision == 0


async def test_a_large_bad_registration_never_stands_in_line(fleet: Fleet) -> None:
    namesrv = NameServer(fleet)
    async with holding(namesrv.writer, fleet.state):
        bad = asyncio.create_task(namesrv.register(registration([*LARGE, "not\ta name"])))
        await asyncio.sleep(0)
        assert namesrv.writer.waiting == 1, "the change that keeps it busy"
    with refuses(Reason.INVALID_FIELD, match=rf"topic_configs\[{len(LARGE)}\].topic"):
        await bad
    assert fleet.state.revision == 0


async def test_topics_of_a_version_that_is_held_are_not_read(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    namesrv = NameServer(fleet)
    await namesrv.register(registration(LARGE))
    with monkeypatch.context() as patch:
        patch.setattr("namesrv.grpc_api.registration.read_topics", lambda *_: pytest.fail("they were read"))
        assert not (await namesrv.register(registration(LARGE))).changed


async def test_small_registrations_and_held_ones_do_not_wait_for_the_thread(fleet: Fleet) -> None:
    namesrv = NameServer(fleet)
    await namesrv.register(registration(LARGE))
    go_on = threading.Event()
    working = asyncio.create_task(namesrv.writer.read(lambda: go_on.wait(20), "a"))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert not (await namesrv.register(registration(LARGE))).changed
        assert (await namesrv.register(registration(["T1"], counter=2))).changed
    go_on.set()
    await working


async def test_topics_are_read_after_all_if_the_broker_has_left_meanwhile(fleet: Fleet) -> None:
    namesrv = NameServer(fleet)
    request = registration(["T1"])
    await namesrv.register(request)
    broker = BrokerKey(request.broker.cluster_name, request.broker.broker_name)
    async with holding(namesrv.writer, fleet.state):
        leaving = unregister_broker(fleet.state, broker, request.broker.broker_addr, RemovalReason.UNREGISTERED)
        left = asyncio.create_task(namesrv.writer.apply(leaving, sharer_of(CONTEXT).name))
        await until(lambda: namesrv.writer.waiting == 2)
        registered = asyncio.create_task(namesrv.register(request))
        await until(lambda: namesrv.writer.waiting == 3)
    assert await left
    assert (await registered).changed
    assert fleet.topics >= {"T1"}


async def test_topics_under_way_are_bounded_until_they_are_answered(fleet: Fleet) -> None:
    namesrv = NameServer(fleet, registered_topics=4)
    async with holding(namesrv.writer, fleet.state):
        first = asyncio.create_task(namesrv.register(registration(["a", "b", "c"])))
        await until(lambda: namesrv.writer.waiting == 2)
        with refuses(Reason.OVERLOADED, match="topics of registrations under way: 5 is over the limit of 4 for all"):
            await namesrv.register(registration(["d", "e"]))
        other = asyncio.create_task(namesrv.register(registration(["d"])))
        await until(lambda: namesrv.writer.waiting == 3)
    await first
    await other
    await namesrv.register(registration(["a", "b", "c", "d"]))


KEY = LiveKey(CLUSTER, A)
HEARTBEAT = pb.BrokerHeartbeatRequest(broker=identity(A))


def question(counter: int = 1) -> pb.QueryDataVersionRequest:
    return pb.QueryDataVersionRequest(broker=identity(A), data_version=data_version(counter))


class _World:
    def __init__(self) -> None:
        self.fleet = Fleet()
        self.tally = RegistrationCounter()
        self.servicer = registration_servicer(self.fleet, tally=self.tally)

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


def change_another_topic(fleet: Fleet) -> None:
    number = fleet.state.revision
    fleet.register(B, name="broker-c", topics=(f"Topic{number}",), version=DataVersion(1_000, number))


STEPS: dict[str, Callable[[Fleet], object]] = {
    "register": lambda fleet: fleet.register(A),
    "register another version": lambda fleet: fleet.register(A, version=DataVersion(1_000, 2)),
    "register another id": lambda fleet: fleet.register(A, 1),
    "register another name": lambda fleet: fleet.register(A, name="broker-b"),
    "another address takes its id": lambda fleet: fleet.register(B),
    "topic by topic": lambda fleet: fleet.register(A, topic_by_topic=True),
    "another topic changes": change_another_topic,
    "unregister": lambda fleet: fleet.unregister(A),
}


@given(st.lists(st.sampled_from(list(STEPS)), max_size=12))
def test_again_it_does_what_the_whole_call_does_or_nothing(steps: list[str]) -> None:
    world = _World()
    world.fleet.register(A)
    known = [(request, world.known(request)) for request in (HEARTBEAT, question())]
    for step in steps:
        STEPS[step](world.fleet)
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
    world.fleet.register(A)
    again = world.known(request_)
    for _ in range(3):
        before = again()
        change_another_topic(world.fleet)
        assert again() not in (None, before)
        assert again() == world.call(request_)[0]


def test_what_comes_again_counts_as_it_did_the_first_time() -> None:
    world = _World()
    world.fleet.register(A)
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
    world.fleet.register(A)
    assert world.call(question(counter=2))[1] is None
    assert world.call(pb.BrokerHeartbeatRequest(broker=identity(B)))[1] is None


ENTERED = Entered(None, MACHINE)


def test_an_address_may_have_260_characters_and_not_one_more() -> None:
    longest = "h" * (MAX_ADDRESS_LENGTH - len(":1")) + ":1"
    check(("broker.broker_addr", longest, ADDRESS))
    with refuses(Reason.INVALID_FIELD, match="has 261 characters, at most 260"):
        check(("broker.broker_addr", f"h{longest}", ADDRESS))


async def test_one_live_broker_too_many_is_refused_while_others_register_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LIVE_BROKERS", 2)
    servicer = registration_servicer(fleet)
    brokers = [identity(f"127.0.0.1:{port}", name=f"broker-{port}") for port in (1, 2, 3)]
    for broker in (*brokers[:2], *brokers[:2]):
        await servicer.RegisterBroker(registration(broker=broker), CONTEXT)
    before = fleet.state.revision
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        await servicer.RegisterBroker(registration(broker=brokers[2]), CONTEXT)
    assert caught.value.metadata == {"name": "live brokers", "value": "3", "limit": "2"}
    assert fleet.state.revision == before


def test_large_requests_are_taken_up_to_a_limit_and_small_ones_always() -> None:
    method = pb.DESCRIPTOR.services_by_name["RegistrationService"].methods_by_name["RegisterBroker"]
    memory = Admission(method, FairShares(request_bytes=3 * limits.MAX_MESSAGE_BYTES), None)
    taken = [memory.take(ENTERED, limits.MAX_MESSAGE_BYTES) for _ in range(3)]
    with refuses(Reason.OVERLOADED, match=f"over the limit of {3 * limits.MAX_MESSAGE_BYTES}"):
        memory.take(ENTERED, limits.SMALL_REQUEST_BYTES + 1)
    assert memory.take(ENTERED, limits.SMALL_REQUEST_BYTES) == 0
    memory.give_back(ENTERED, taken.pop())
    assert memory.take(ENTERED, limits.SMALL_REQUEST_BYTES + 1) == limits.SMALL_REQUEST_BYTES + 1


def test_permits_are_asked_about_no_more_groups_than_a_call_may_name(fleet: Fleet) -> None:
    request = pb.RegisterTopicRequest(queue_datas=[route_data_pb2.QueueData()] * 30_000)
    named = list(NamedBrokers(fleet.state).of(request))
    assert len(named) == limits.MAX_QUEUE_DATAS_PER_TOPIC + 1
