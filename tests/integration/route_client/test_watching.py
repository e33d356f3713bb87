"""How a client keeps its routes: by a watch, or by polling where there is none."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest

from route_client import AioRouteClient, RouteClient, Stale, TopicNotFoundError
from tests.integration.route_client.sessions import QUICK, TOPIC, shows, watching
from tests.support.fakes.watched_name_server import FakeNameServer, Refusal
from tests.support.programs.processes import eventually
from tests.support.routes.wire_routes import route, wire_route


def test_topics_given_at_the_start_are_looked_up_in_one_batch(fake: FakeNameServer) -> None:
    fake.put("Other", wire_route("broker-b"))
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC, "Other", "Missing"]) as client:
        assert fake.lookups == [[TOPIC, "Other", "Missing"]]
        assert client.route("Other").route == route("broker-b")
        eventually(lambda: client.status().mode, lambda mode: mode == "watch")
        with pytest.raises(TopicNotFoundError, match=r"ns-a knows no topic 'Missing'"):
            client.route("Missing")
    assert len(fake.watch_requests) == 1


async def test_topics_added_later_join_the_watch(fake: FakeNameServer) -> None:
    for number in range(5):
        fake.put(f"topic-{number}", wire_route())

    async with AioRouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        await asyncio.to_thread(eventually, lambda: client.status().mode, lambda mode: mode == "watch")
        await asyncio.gather(*(client.route(f"topic-{number}") for number in range(5)))
        await asyncio.to_thread(eventually, lambda: len(fake.watch_updates), lambda number: number == 1)
        with client.changes(["topic-3"]) as changes:
            fake.put("topic-3", wire_route("broker-z"))
            assert (await anext(changes)).new_route == route("broker-z")
    assert [len(asked) for asked in fake.lookups] == [1, 5], "those that are asked for together"
    assert [len(request.topics) for request in (*fake.watch_requests, *fake.watch_updates)] == [1, 5]


def test_a_topic_that_is_not_there_yet_arrives_when_it_comes_and_is_not_asked_for_again(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=["Later"]) as client:
        watching(client, fake)
        for _ in range(3):
            with pytest.raises(TopicNotFoundError):
                client.route("Later")
        assert len(fake.lookups) == 1
        fake.put("Later", wire_route())
        shows(client, topic="Later")


def test_the_watch_is_tried_again_where_there_was_none(fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("route_client.keeper.RESYNC_SECONDS", 0.1)
    fake.watches = False
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        eventually(lambda: client.status().mode, lambda mode: mode == "poll")
        fake.watches = True
        watching(client, fake)


@pytest.mark.parametrize(
    ("refusals", "problem"),
    [([], "NOT_IMPLEMENTED"), ([(grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED", None)], "LIMIT_EXCEEDED")],
)
def test_without_a_watch_routes_are_polled_and_unexplained_losses_held(
    fake: FakeNameServer, refusals: list[Refusal], problem: str
) -> None:
    fake.watches, fake.refusals = bool(refusals), refusals
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        eventually(lambda: client.status().mode, lambda mode: mode == "poll")
        assert problem in client.status().last_error
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")
        fake.put(TOPIC, None)
        shows(client, "broker-b", stale=Stale.HELD)
        assert client.status().held_topics == (TOPIC,)


def test_a_topic_that_is_too_many_for_the_watch_has_all_routes_polled(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.update_refusals = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED", None)]
        with pytest.raises(TopicNotFoundError):
            client.route("Other")
        eventually(lambda: client.status().mode, lambda mode: mode == "poll")
        fake.put("Other", wire_route())
        assert client.route("Other").route == route(), "nobody tells changes any more, so it is looked up"


def test_a_watch_that_says_nothing_does_not_hide_changes_for_ever(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route_client.keeper.RESYNC_SECONDS", 0.1)

    def says_nothing(message: Any) -> Any:
        del message.changes[:]
        return message

    fake.spoil = says_nothing
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")


async def test_lookups_of_one_topic_at_the_same_time_are_one_call(fake: FakeNameServer) -> None:
    held = fake.hold_lookups = threading.Event()
    async with AioRouteClient(str(fake.endpoint), QUICK) as client:
        asked = [asyncio.create_task(client.route(TOPIC)) for _ in range(20)]
        await asyncio.to_thread(eventually, lambda: list(fake.lookups))
        held.set()
        assert {known.route for known in await asyncio.gather(*asked)} == {route()}
    assert fake.lookups == [[TOPIC]]
