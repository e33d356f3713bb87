"""ClusterTest: one name server of the environment after the other, within one deadline, and never too many lookups.

The name servers are real gRPC servers on loopback in the event loop of the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from structlog.testing import capture_logs

from groundwork.grpc_errors import RichError
from namesrv import limits
from namesrv.app.cluster_test import (
    CLUSTER_TEST_KEY,
    ROUTES_BETWEEN_PAUSES,
)
from namesrv.core.errors import Reason, limit_exceeded
from namesrv.error_codes import FAILURES
from tests.support.refusals import refuses
from tests.unit.namesrv.worlds.product_environment import (
    PROMPT_SECONDS,
    ROUTE_SERVICE,
    Env,
    FakeNamesrv,
    Nowhere,
    route_of,
    run,
)

WARMING = RichError(grpc.StatusCode.UNAVAILABLE, "has just started", reason="REGISTRY_WARMING", domain="namesrv.dev")
TOO_MUCH = FAILURES.table.rich(limit_exceeded("bytes of a route in a batch", 5_000_000, 4_194_304))
SHORT_SECONDS = 2.0
"""A deadline that a test waits for."""


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


def test_an_answer_may_be_as_large_as_a_batch() -> None:
    large = route_of("x" * (limits.MAX_BATCH_BYTES - 100))

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
        nowhere, refusing, warms = env.namesrvs
        refusing.error = WARMING
        warms.warming = {"T"}
        with refuses(Reason.PRODUCT_ENV_UNAVAILABLE) as caught:
            await env.route("T")
        assert caught.value.text == (
            "unknown here, and the product environment 'center' cannot tell: "
            f"{nowhere.endpoint}: UNAVAILABLE; {refusing.endpoint}: UNAVAILABLE REGISTRY_WARMING; "
            f"{warms.endpoint}: is not warm"
        )
        assert caught.value.metadata == {"product_env": "center"}

    run(steps, lambda: Env(Nowhere("a"), FakeNamesrv("b"), FakeNamesrv("c")))


def test_routes_over_the_limits_there_are_over_the_limits_here_and_nobody_else_is_asked() -> None:
    async def steps(env: Env) -> None:
        env.namesrvs[0].error = TOO_MUCH
        with refuses(Reason.LIMIT_EXCEEDED) as caught:
            await env.routes("a", "b")
        assert FAILURES.table.rich(caught.value) == TOO_MUCH
        assert env.asked() == [1, 0]

    run(steps, two)


def test_a_name_server_that_failed_is_asked_after_the_others_until_one_of_them_fails() -> None:
    async def steps(env: Env) -> None:
        a, b = env.namesrvs
        a.error = WARMING
        await env.route("T")
        assert env.asked() == [1, 1]
        a.error = None
        await env.route("T")
        assert env.asked() == [1, 2]
        b.error = WARMING
        await env.route("T")
        await env.route("T")
        assert env.asked() == [3, 3]

    run(steps, two)


def test_a_failure_is_logged_once_and_so_is_its_end() -> None:
    async def steps(env: Env) -> None:
        a = env.namesrvs[0]
        a.error = WARMING
        with capture_logs() as logs:
            for _ in range(3):
                with refuses(Reason.PRODUCT_ENV_UNAVAILABLE):
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
        with refuses(Reason.OVERLOADED, match="2 lookups wait for the product environment 'center' already"):
            await env.route("a")
        a.lets.set()
        assert await asyncio.gather(*waiting) == [route_of("a").SerializeToString()] * 2
        assert await env.route("a") is not None

    run(steps, lambda: Env(FakeNamesrv("a"), max_lookups=2))


def test_lookups_that_fail_make_room_too() -> None:
    async def steps(env: Env) -> None:
        env.namesrvs[0].error = WARMING
        for _ in range(3):
            with refuses(Reason.PRODUCT_ENV_UNAVAILABLE):
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
        with refuses(Reason.SHUTTING_DOWN):
            await env.route("a")
        assert env.asked() == [1, 0]

    run(steps, two)
