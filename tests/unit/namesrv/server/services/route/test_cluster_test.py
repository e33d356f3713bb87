"""ClusterTest: one name server of the environment after the other, within one deadline, and never too many lookups.

The name servers are real gRPC servers on loopback in the event loop of the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from structlog.testing import capture_logs

from groundwork.endpoints import Endpoint
from groundwork.rich_errors import RichError
from namesrv.config import limits
from namesrv.core.errors import LimitExceeded, Overloaded, ProductEnvUnavailable, ShuttingDown
from namesrv.server.rpc.status import FAILURES
from namesrv.server.services.route.cluster_test import (
    ASK_LAST_SECONDS,
    CLUSTER_TEST_KEY,
    ROUTES_BETWEEN_PAUSES,
    ClusterTest,
    asked_by_cluster_test,
)
from support.virtual_clock import VirtualClock

ROUTE_SERVICE = pb.DESCRIPTOR.services_by_name["RouteService"]
WARMING = RichError(grpc.StatusCode.UNAVAILABLE, "has just started", reason="REGISTRY_WARMING", domain="namesrv")
TOO_MUCH = FAILURES.table.rich(LimitExceeded("bytes of routes in one answer", 5_000_000, 4_194_304))
PROMPT_SECONDS = 20.0
"""A deadline that no test waits for."""
SHORT_SECONDS = 0.5
"""A deadline that a test waits for."""


def route_of(name: str) -> route_data_pb2.TopicRouteData:
    """A route that tells who answered."""
    return route_data_pb2.TopicRouteData(broker_datas=[route_data_pb2.BrokerData(broker_name=name)])


class FakeNamesrv:
    """A name server that has one topic, named like itself, and answers as told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[pb.BatchGetTopicRoutesRequest] = []
        self.seconds_given: list[float] = []
        self.from_cluster_test: list[bool] = []
        self.has = {name}
        self.warming: set[str] = set()
        self.error: RichError | None = None
        self.raw: bytes | None = None
        self.lets = asyncio.Event()
        self.lets.set()
        self.asked = asyncio.Event()
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self.endpoint = Endpoint("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        handlers = {"BatchGetTopicRoutes": grpc.unary_unary_rpc_method_handler(self._batch_get_topic_routes)}
        service = grpc.method_handlers_generic_handler(ROUTE_SERVICE.full_name, handlers)
        self._server.add_generic_rpc_handlers((service,))

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _batch_get_topic_routes(self, encoded: bytes, context: Any) -> bytes:
        request = pb.BatchGetTopicRoutesRequest.FromString(encoded)
        self.requests.append(request)
        self.seconds_given.append(context.time_remaining())
        self.from_cluster_test.append(asked_by_cluster_test(context))
        self.asked.set()
        await self.lets.wait()
        if self.error is not None:
            await context.abort_with_status(self.error.status())
        return self.raw if self.raw is not None else self._answer(request).SerializeToString()

    def _answer(self, request: pb.BatchGetTopicRoutesRequest) -> pb.BatchGetTopicRoutesResponse:
        answer = pb.BatchGetTopicRoutesResponse()
        for topic in request.topics:
            if topic in self.has:
                answer.routes.add(topic=topic, route=route_of(self.name))
            elif topic in self.warming:
                answer.topics_warming.append(topic)
            else:
                answer.topics_not_found.append(topic)
        return answer


class Nowhere(FakeNamesrv):
    """An address at which nobody listens, but somebody did."""

    async def start(self) -> None:
        await super().start()  # one that never started keeps its port open
        await self.stop()


class Env:
    """A product environment of some name servers."""

    def __init__(self, *namesrvs: FakeNamesrv, timeout_seconds: float = PROMPT_SECONDS, max_lookups: int = 10) -> None:
        self.namesrvs = namesrvs
        self.clock = VirtualClock()
        endpoints = [namesrv.endpoint for namesrv in namesrvs]
        self.product = ClusterTest("center", endpoints, self.clock.monotonic, timeout_seconds, max_lookups)

    async def route(self, topic: str, zone_name: str | None = None) -> bytes | None:
        return await self.product.route(topic, zone_name)

    async def routes(self, *topics: str) -> dict[str, bytes | None]:
        return await self.product.routes(topics, None)

    def asked(self) -> list[int]:
        """How often each name server was asked."""
        return [len(namesrv.requests) for namesrv in self.namesrvs]


def run(steps: Callable[[Env], Awaitable[None]], make: Callable[[], Env]) -> None:
    """Runs steps in an environment whose name servers are up."""

    async def started_and_stopped() -> None:
        env = make()
        for namesrv in env.namesrvs:
            await namesrv.start()
        try:
            async with asyncio.timeout(60):
                await steps(env)
        finally:
            await env.product.close()
            for namesrv in env.namesrvs:
                namesrv.lets.set()
                await namesrv.stop()

    asyncio.run(started_and_stopped())


def one() -> Env:
    return Env(FakeNamesrv("a"))


def two() -> Env:
    return Env(FakeNamesrv("a"), FakeNamesrv("b"))


def first_is_nowhere() -> Env:
    return Env(Nowhere("a"), FakeNamesrv("b"))


def from_b(topic: str) -> dict[str, bytes | None]:
    return {topic: route_of("b").SerializeToString()}


def test_a_route_comes_encoded_from_the_first_name_server_and_nobody_else_is_asked() -> None:
    async def steps(env: Env) -> None:
        assert await env.route("a") == route_of("a").SerializeToString()
        assert env.asked() == [1, 0]

    run(steps, two)


def test_a_topic_that_one_name_server_does_not_have_is_not_asked_of_the_next() -> None:
    async def steps(env: Env) -> None:
        assert await env.route("b") is None
        assert env.asked() == [1, 0]

    run(steps, two)


@pytest.mark.parametrize("zone_name", ["zone-1", None])
def test_the_zone_is_passed_on_as_it_came(zone_name: str | None) -> None:
    async def steps(env: Env) -> None:
        await env.route("a", zone_name)
        (request,) = env.namesrvs[0].requests
        assert request == pb.BatchGetTopicRoutesRequest(topics=["a"], zone_name=zone_name)

    run(steps, one)


def test_fields_that_this_version_does_not_know_reach_the_caller_too() -> None:
    unknown_field = b"\xfa\x07\x03new"

    async def steps(env: Env) -> None:
        named = pb.NamedTopicRoute(topic="a", route=route_data_pb2.TopicRouteData.FromString(unknown_field))
        env.namesrvs[0].raw = pb.BatchGetTopicRoutesResponse(routes=[named]).SerializeToString()
        assert await env.route("a") == unknown_field

    run(steps, one)


def test_a_batch_is_one_call_that_tells_routes_from_topics_that_are_not_there() -> None:
    topics = [f"T{number}" for number in range(2 * ROUTES_BETWEEN_PAUSES + 1)]

    async def steps(env: Env) -> None:
        env.namesrvs[0].has.update(topics)
        routes = await env.routes("gone", *topics, "gone too")
        assert routes == dict.fromkeys(topics, route_of("a").SerializeToString()) | {"gone": None, "gone too": None}
        assert env.asked() == [1]

    run(steps, one)


def test_an_answer_may_be_larger_than_a_grpc_client_takes_by_default() -> None:
    large = route_of("x" * limits.MAX_BATCH_ROUTES_BYTES)

    async def steps(env: Env) -> None:
        answer = pb.BatchGetTopicRoutesResponse(routes=[pb.NamedTopicRoute(topic="a", route=large)])
        env.namesrvs[0].raw = answer.SerializeToString()
        assert await env.route("a") == large.SerializeToString()

    run(steps, one)


def test_topics_that_nobody_asked_for_are_no_answer() -> None:
    async def steps(env: Env) -> None:
        answer = pb.BatchGetTopicRoutesResponse(topics_not_found=["other"])
        answer.routes.add(topic="another", route=route_of("a"))
        env.namesrvs[0].raw = answer.SerializeToString()
        assert await env.routes("b") == from_b("b")

    run(steps, two)


def test_where_nobody_listens_the_next_one_is_asked() -> None:
    async def steps(env: Env) -> None:
        assert await env.routes("b") == from_b("b")

    run(steps, first_is_nowhere)


@pytest.mark.parametrize(
    "error",
    [
        WARMING,
        RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much waits", reason="OVERLOADED"),
        RichError(grpc.StatusCode.UNIMPLEMENTED, "another version"),
        RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, "of another make", reason="LIMIT_EXCEEDED"),
    ],
    ids=str,
)
def test_a_name_server_that_fails_is_followed_by_the_next(error: RichError) -> None:
    async def steps(env: Env) -> None:
        env.namesrvs[0].error = error
        assert await env.routes("b") == from_b("b")

    run(steps, two)


def test_whoever_answers_with_something_else_is_followed_by_the_next() -> None:
    async def steps(env: Env) -> None:
        env.namesrvs[0].raw = b"\xff"
        assert await env.routes("b") == from_b("b")

    run(steps, two)


def test_whoever_hangs_is_followed_by_the_next_after_its_share_of_the_time() -> None:
    async def steps(env: Env) -> None:
        env.namesrvs[0].lets.clear()
        assert await env.routes("b") == from_b("b")
        assert env.asked() == [1, 1]

    run(steps, lambda: Env(FakeNamesrv("a"), FakeNamesrv("b"), timeout_seconds=2 * SHORT_SECONDS))


def test_each_name_server_is_given_its_share_of_the_time_that_is_left() -> None:
    async def steps(env: Env) -> None:
        a, b = env.namesrvs
        a.lets.clear()
        a.error = WARMING
        lookup = asyncio.create_task(env.route("T"))
        await a.asked.wait()
        env.clock.advance(PROMPT_SECONDS * 3 / 4)
        a.lets.set()
        await lookup
        rounding = 1.05  # gRPC sends deadlines with two or three digits, rounded up
        assert 0 < a.seconds_given[0] <= PROMPT_SECONDS / 2 * rounding
        assert 0 < b.seconds_given[0] <= PROMPT_SECONDS / 4 * rounding

    run(steps, two)


def test_topics_that_one_does_not_know_yet_are_asked_of_the_next_alone() -> None:
    async def steps(env: Env) -> None:
        a, b = env.namesrvs
        a.warming = {"b", "neither"}
        b.warming = {"neither"}
        assert await env.routes("a", "b", "neither", "gone") == {
            "a": route_of("a").SerializeToString(),
            "b": route_of("b").SerializeToString(),
            "gone": None,
        }
        assert list(b.requests[0].topics) == ["b", "neither"]

    run(steps, two)


def test_if_nobody_can_tell_each_of_them_is_named_with_what_it_did() -> None:
    async def steps(env: Env) -> None:
        nowhere, refuses, warms = env.namesrvs
        refuses.error = WARMING
        warms.warming = {"T"}
        with pytest.raises(ProductEnvUnavailable) as caught:
            await env.route("T")
        assert caught.value.message == (
            "unknown here, and the product environment 'center' cannot tell: "
            f"{nowhere.endpoint}: UNAVAILABLE; {refuses.endpoint}: UNAVAILABLE REGISTRY_WARMING; "
            f"{warms.endpoint}: is not warm"
        )
        assert caught.value.metadata == {"product_env": "center"}

    run(steps, lambda: Env(Nowhere("a"), FakeNamesrv("b"), FakeNamesrv("c")))


@pytest.mark.parametrize("name_key", ["name", "what"])
def test_routes_over_the_limits_there_are_over_the_limits_here_and_nobody_else_is_asked(name_key: str) -> None:
    """Name servers of version 0.1 say ``what`` is over its limit."""
    metadata = {name_key if key == "name" else key: value for key, value in TOO_MUCH.metadata.items()}

    async def steps(env: Env) -> None:
        env.namesrvs[0].error = replace(TOO_MUCH, metadata=metadata)
        with pytest.raises(LimitExceeded) as caught:
            await env.routes("a", "b")
        assert FAILURES.table.rich(caught.value) == TOO_MUCH
        assert env.asked() == [1, 0]

    run(steps, two)


def test_a_name_server_that_failed_is_asked_last_for_a_while() -> None:
    async def steps(env: Env) -> None:
        a = env.namesrvs[0]
        a.error = WARMING
        await env.route("T")
        assert env.asked() == [1, 1]
        env.clock.advance(ASK_LAST_SECONDS - 1)
        await env.route("T")
        assert env.asked() == [1, 2]
        env.clock.advance(1)
        await env.route("T")
        assert env.asked() == [2, 3]
        a.error = None
        env.clock.advance(ASK_LAST_SECONDS)
        await env.route("T")
        await env.route("T")
        assert env.asked() == [4, 3]

    run(steps, two)


def test_if_all_have_failed_the_one_whose_failure_is_oldest_is_asked_first() -> None:
    async def steps(env: Env) -> None:
        a, b = env.namesrvs
        a.error = WARMING
        await env.route("T")
        env.clock.advance(1)
        b.error, a.error = WARMING, None
        await env.route("T")  # b, then a, which is well again
        a.error = WARMING
        env.clock.advance(1)
        with pytest.raises(ProductEnvUnavailable):
            await env.route("T")  # a, then b
        env.clock.advance(1)
        a.error = b.error = None
        before = env.asked()
        await env.route("T")
        assert env.asked() == [before[0] + 1, before[1]]

    run(steps, two)


def test_a_failure_is_logged_once_and_so_is_its_end() -> None:
    async def steps(env: Env) -> None:
        a = env.namesrvs[0]
        a.error = WARMING
        with capture_logs() as logs:
            for _ in range(3):
                with pytest.raises(ProductEnvUnavailable):
                    await env.route("T")
            a.error = None
            for _ in range(3):
                await env.route("T")
        assert [line["event"] for line in logs] == ["product_env_namesrv_failed", "product_env_namesrv_answers_again"]
        assert {line["namesrv"] for line in logs} == {str(a.endpoint)}

    run(steps, one)


def test_a_caller_that_does_not_wait_lets_the_next_caller_ask_elsewhere_first() -> None:
    async def steps(env: Env) -> None:
        a = env.namesrvs[0]
        a.lets.clear()
        impatient = asyncio.create_task(env.route("T"))
        await a.asked.wait()
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        await env.route("T")
        assert env.asked() == [1, 1]

    run(steps, two)


def test_so_many_lookups_may_wait_and_one_more_is_refused_until_one_has_ended() -> None:
    async def steps(env: Env) -> None:
        a = env.namesrvs[0]
        a.lets.clear()
        waiting = [asyncio.create_task(env.route("a")) for _ in range(2)]
        await a.asked.wait()
        with pytest.raises(Overloaded, match="2 lookups wait for the product environment 'center' already"):
            await env.route("a")
        a.lets.set()
        assert await asyncio.gather(*waiting) == [route_of("a").SerializeToString()] * 2
        assert await env.route("a") is not None

    run(steps, lambda: Env(FakeNamesrv("a"), max_lookups=2))


def test_lookups_that_fail_make_room_too() -> None:
    async def steps(env: Env) -> None:
        env.namesrvs[0].error = WARMING
        for _ in range(3):
            with pytest.raises(ProductEnvUnavailable):
                await env.route("a")

    run(steps, lambda: Env(FakeNamesrv("a"), max_lookups=1))


def test_lookups_say_that_they_are_on_behalf_of_another_name_server_and_other_callers_do_not() -> None:
    async def steps(env: Env) -> None:
        (a,) = env.namesrvs
        await env.route("a")
        request = pb.BatchGetTopicRoutesRequest(topics=["a"]).SerializeToString()
        async with grpc.aio.insecure_channel(str(a.endpoint)) as connection:
            call = connection.unary_unary(f"/{ROUTE_SERVICE.full_name}/BatchGetTopicRoutes", None, None)
            await call(request, timeout=PROMPT_SECONDS, metadata=(("x-" + CLUSTER_TEST_KEY, "1"),))
        assert a.from_cluster_test == [True, False]

    run(steps, one)


def test_after_closing_no_lookup_begins_and_none_goes_on_waiting() -> None:
    async def steps(env: Env) -> None:
        a, _ = env.namesrvs
        a.lets.clear()
        waiting = asyncio.create_task(env.route("a"))
        await a.asked.wait()
        await env.product.close()
        outcome: Sequence[object] = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(outcome[0], asyncio.CancelledError)
        with pytest.raises(ShuttingDown):
            await env.route("a")
        assert env.asked() == [1, 0]

    run(steps, two)
