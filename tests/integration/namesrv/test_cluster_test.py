"""Cluster-test mode: topics that are unknown here are looked up in the product environment, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.core.errors import Reason
from namesrv.core.state import WarmUp
from namesrv.grpc_api.route import CLUSTER_TEST_KEY, ClusterTestLookups
from namesrv_common.grpc_errors import RichError
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import held_port, joined
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient
from tests.support.refusals import refuses
from tests.support.registrations import identity, registration

HERE = identity("127.0.0.1:10911", name="broker-here")
THERE = identity("127.0.0.1:20911", name="broker-there")


def holder(client: Client, topic: str) -> str | None:
    """Name of the broker group that has the topic; None if the name server says that there is none."""
    route = client.route(topic)
    return route.broker_datas[0].broker_name if route else None


def test_name_servers_answer_for_each_other_and_ask_in_no_circle() -> None:
    with (
        held_port() as nobody,
        held_port() as place,
        NamesrvProcess(
            "--product-env-namesrv", joined(nobody, place), "--remoting-listen", "127.0.0.1:0"
        ) as namesrv_here,
        NamesrvProcess("--product-env-namesrv", str(namesrv_here.endpoint), port=place.port) as namesrv_there,
        namesrv_here.connect() as here,
        namesrv_there.connect() as there,
        RemotingClient(str(namesrv_here.wait_for("namesrv_started")["remoting"])) as of_rocketmq,
    ):
        here.registration.RegisterBroker(registration(["both", "here"], HERE), timeout=TIMEOUT)
        there.registration.RegisterBroker(registration(["both", "there"], THERE), timeout=TIMEOUT)
        assert holder(here, "there") == "broker-there"
        assert holder(there, "here") == "broker-here"
        for client in (here, there):
            assert client.route("nowhere") is None
            request = pb.BatchGetTopicRoutesRequest(topics=["nowhere"])
            assert list(client.routes.BatchGetTopicRoutes(request, timeout=TIMEOUT).topics_not_found) == ["nowhere"]
        assert here.route("there") == there.route("there")
        listed = here.routes.ListTopics(pb.ListTopicsRequest(), timeout=TIMEOUT)
        assert list(listed.topics) == ["both", "here"], "every other call knows only what is here"
        routes = [of_rocketmq.ask(105, {"topic": topic}).json for topic in ("here", "both", "there")]
        brokers = [route["brokerDatas"][0]["brokerName"] for route in routes]
        assert brokers == ["broker-here", "broker-here", "broker-there"]
        assert of_rocketmq.ask(105, {"topic": "nowhere"}).code == 17


WARMING = RichError(grpc.StatusCode.UNAVAILABLE, "has just started", reason="REGISTRY_WARMING", domain="namesrv.dev")


def route_of(name: str) -> route_data_pb2.TopicRouteData:
    """A route that tells who answered."""
    return route_data_pb2.TopicRouteData(broker_datas=[route_data_pb2.BrokerData(broker_name=name)])


class Holder(ScriptedNamesrv):
    """A name server that has one topic, named like itself."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.warming: set[str] = set()

    @property
    def requests(self) -> list[pb.BatchGetTopicRoutesRequest]:
        return self.asked["BatchGetTopicRoutes"]

    def BatchGetTopicRoutes(  # noqa: N802 - the name of the call
        self, request: pb.BatchGetTopicRoutesRequest, _context: grpc.ServicerContext
    ) -> pb.BatchGetTopicRoutesResponse:
        answer = pb.BatchGetTopicRoutesResponse()
        for topic in request.topics:
            if topic == self.name:
                answer.routes.add(topic=topic, route=route_of(self.name))
            else:
                (answer.topics_warming if topic in self.warming else answer.topics_not_found).append(topic)
        return answer


class Env:
    """A name server in cluster-test mode, and the environment that it asks: the name servers a and b."""

    def __init__(self, *namesrvs: Holder) -> None:
        self.a, self.b = self.namesrvs = namesrvs
        state = Fleet().state
        self.lookups = ClusterTestLookups(state, WarmUp(state, 0), [namesrv.endpoint for namesrv in self.namesrvs])

    async def holder(self, topic: str, zone_name: str | None = None) -> str:
        """Who answered a lookup with a route. Raises Refused."""
        encoded = await self.lookups.GetTopicRoute(pb.GetTopicRouteRequest(topic=topic, zone_name=zone_name), CONTEXT)
        return pb.GetTopicRouteResponse.FromString(encoded).route.broker_datas[0].broker_name

    async def batch(self, *topics: str) -> pb.BatchGetTopicRoutesResponse:
        encoded = await self.lookups.BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=topics), CONTEXT)
        return pb.BatchGetTopicRoutesResponse.FromString(encoded)

    def asked(self) -> list[int]:
        """How often each name server was asked."""
        return [len(namesrv.requests) for namesrv in self.namesrvs]


@pytest.fixture
async def env() -> AsyncIterator[Env]:
    with Holder("a") as a, Holder("b") as b:
        env = Env(a, b)
        yield env
        await env.lookups.close()


async def test_the_first_that_answers_decides_and_is_told_zone_and_mode(env: Env) -> None:
    assert await env.holder("a", "zone-1") == "a"
    with refuses(Reason.TOPIC_NOT_FOUND):
        await env.holder("b")
    assert env.asked() == [2, 0]
    assert env.a.requests[0] == pb.BatchGetTopicRoutesRequest(topics=["a"], zone_name="zone-1")
    assert CLUSTER_TEST_KEY in env.a.metadata[0]


async def test_a_name_server_that_fails_is_followed_by_the_next_and_asked_last(env: Env) -> None:
    env.a.refusal = WARMING
    assert await env.holder("b") == "b"
    assert await env.holder("b") == "b"
    assert env.asked() == [1, 2]


async def test_whoever_hangs_is_followed_by_the_next_after_its_share_of_the_time(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PRODUCT_ENV_TIMEOUT_SECONDS", 4.0)

    env.a.hang()
    assert await env.holder("b") == "b"
    assert env.asked() == [1, 1]


async def test_if_nobody_can_tell_each_of_them_is_named_with_what_it_did(env: Env) -> None:
    env.a.stop()
    env.b.warming = {"T"}
    with refuses(Reason.PRODUCT_ENV_UNAVAILABLE) as caught:
        await env.holder("T")
    assert f"cannot tell: {env.a.endpoint}: UNAVAILABLE; {env.b.endpoint}: is not warm" in caught.value.text


async def test_a_batch_asks_the_next_about_topics_that_the_first_lacks_yet(env: Env) -> None:
    env.a.warming, env.b.warming = {"b", "neither"}, {"neither"}
    answer = await env.batch("b", "neither", "gone", "a")
    assert [(named.topic, named.route) for named in answer.routes] == [("b", route_of("b")), ("a", route_of("a"))]
    assert (list(answer.topics_not_found), list(answer.topics_warming)) == (["gone"], ["neither"])
    assert list(env.b.requests[0].topics) == ["b", "neither"]


async def test_a_batch_leaves_out_routes_that_do_not_fit(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", 200)

    answer = await env.batch("a", "gone")
    assert (list(answer.topics_left_out), list(answer.topics_not_found)) == (["a"], ["gone"])


async def test_only_so_many_lookups_wait_at_once(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PRODUCT_ENV_LOOKUPS", 1)
    with_one = Env(*env.namesrvs)

    env.a.hang()
    waiting = asyncio.create_task(with_one.holder("a"))
    await asyncio.to_thread(env.a.wait_until, lambda: bool(env.a.requests))
    with refuses(Reason.OVERLOADED):
        await with_one.holder("a")
    env.a.answer_again()
    assert await waiting == "a"
    assert await with_one.holder("a") == "a"
    await with_one.lookups.close()
