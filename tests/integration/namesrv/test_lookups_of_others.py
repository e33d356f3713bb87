"""Lookups in cluster-test mode: one name server of the environment after the other, within one deadline.

The name servers are real gRPC servers on loopback in the event loop of the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError
from namesrv import limits
from namesrv.core.errors import Reason
from namesrv.core.warm_up import WarmUp
from namesrv.grpc_api.cluster_test import CLUSTER_TEST_KEY, ClusterTestLookups
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses

ROUTE_SERVICE = pb.DESCRIPTOR.services_by_name["RouteService"]


WARMING = RichError(grpc.StatusCode.UNAVAILABLE, "has just started", reason="REGISTRY_WARMING", domain="namesrv.dev")


def route_of(name: str) -> route_data_pb2.TopicRouteData:
    """A route that tells who answered."""
    return route_data_pb2.TopicRouteData(broker_datas=[route_data_pb2.BrokerData(broker_name=name)])


class FakeNamesrv:
    """A name server that has one topic, named like itself, and answers as told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[pb.BatchGetTopicRoutesRequest] = []
        self.metadata: list[Any] = []
        self.warming: set[str] = set()
        self.error: RichError | None = None
        self.lets, self.asked = asyncio.Event(), asyncio.Event()
        self.lets.set()
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self.endpoint = Endpoint("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        handler = grpc.unary_unary_rpc_method_handler(
            self._answer, pb.BatchGetTopicRoutesRequest.FromString, pb.BatchGetTopicRoutesResponse.SerializeToString
        )
        service = grpc.method_handlers_generic_handler(ROUTE_SERVICE.full_name, {"BatchGetTopicRoutes": handler})
        self._server.add_generic_rpc_handlers((service,))

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        self.lets.set()
        await self._server.stop(None)

    async def _answer(self, request: pb.BatchGetTopicRoutesRequest, context: Any) -> pb.BatchGetTopicRoutesResponse:
        self.requests.append(request)
        self.metadata.append([key for key, _ in context.invocation_metadata()])
        self.asked.set()
        await self.lets.wait()
        if self.error is not None:
            await context.abort_with_status(self.error.status())
        answer = pb.BatchGetTopicRoutesResponse()
        for topic in request.topics:
            if topic == self.name:
                answer.routes.add(topic=topic, route=route_of(self.name))
            else:
                (answer.topics_warming if topic in self.warming else answer.topics_not_found).append(topic)
        return answer


class Env:
    """A name server in cluster-test mode, and the environment that it asks: the name servers a and b."""

    def __init__(self) -> None:
        self.a, self.b = self.namesrvs = FakeNamesrv("a"), FakeNamesrv("b")
        state = (fleet := Fleet()).state
        self.lookups = ClusterTestLookups(
            state,
            WarmUp(state, fleet.clock, 0),
            [namesrv.endpoint for namesrv in self.namesrvs],
        )

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
    env = Env()
    for namesrv in env.namesrvs:
        await namesrv.start()
    try:
        yield env
    finally:
        await env.lookups.close()
        for namesrv in env.namesrvs:
            await namesrv.stop()


async def test_the_first_name_server_that_answers_decides_and_is_told_zone_and_mode(env: Env) -> None:
    assert await env.holder("a", "zone-1") == "a"
    with refuses(Reason.TOPIC_NOT_FOUND):
        await env.holder("b")
    assert env.asked() == [2, 0]
    assert env.a.requests[0] == pb.BatchGetTopicRoutesRequest(topics=["a"], zone_name="zone-1")
    assert CLUSTER_TEST_KEY in env.a.metadata[0]


async def test_a_name_server_that_fails_is_followed_by_the_next_and_asked_last_from_then_on(env: Env) -> None:
    env.a.error = WARMING
    assert await env.holder("b") == "b"
    assert await env.holder("b") == "b"
    assert env.asked() == [1, 2]


async def test_whoever_hangs_is_followed_by_the_next_after_its_share_of_the_time(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PRODUCT_ENV_TIMEOUT_SECONDS", 4.0)

    env.a.lets.clear()
    assert await env.holder("b") == "b"
    assert env.asked() == [1, 1]


async def test_if_nobody_can_tell_each_of_them_is_named_with_what_it_did(env: Env) -> None:
    await env.a.stop()
    env.b.warming = {"T"}
    with refuses(Reason.PRODUCT_ENV_UNAVAILABLE) as caught:
        await env.holder("T")
    assert f"cannot tell: {env.a.endpoint}: UNAVAILABLE; {env.b.endpoint}: is not warm" in caught.value.text


async def test_a_batch_asks_the_next_only_about_topics_that_the_first_does_not_know_yet(env: Env) -> None:
    env.a.warming, env.b.warming = {"b", "neither"}, {"neither"}
    answer = await env.batch("b", "neither", "gone", "a")
    assert [(named.topic, named.route) for named in answer.routes] == [("b", route_of("b")), ("a", route_of("a"))]
    assert (list(answer.topics_not_found), list(answer.topics_warming)) == (["gone"], ["neither"])
    assert list(env.b.requests[0].topics) == ["b", "neither"]


async def test_a_batch_leaves_out_routes_that_do_not_fit(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", 200)

    answer = await env.batch("a", "gone")
    assert (list(answer.topics_left_out), list(answer.topics_not_found)) == (["a"], ["gone"])


@pytest.fixture
def one_lookup_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PRODUCT_ENV_LOOKUPS", 1)


@pytest.mark.usefixtures("one_lookup_at_once")
async def test_only_so_many_lookups_wait_at_once(env: Env) -> None:
    env.a.lets.clear()
    waiting = asyncio.create_task(env.holder("a"))
    await env.a.asked.wait()
    with refuses(Reason.OVERLOADED):
        await env.holder("a")
    env.a.lets.set()
    assert await waiting == "a"
    assert await env.holder("a") == "a"
