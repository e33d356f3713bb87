"""How a client keeps its routes: by a watch or by polling, while name servers go, hang, restart or are not ready."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import route_data_pb2

from namesrv_common.endpoints import Endpoint
from route_client import AioRouteClient, ClientSettings, NoNamesrvAnsweredError, RouteClient, Stale, TopicNotFoundError
from route_client.watch_stream import WatchStream
from tests.integration.route_client.conftest import QUICK, TOPIC, InOrder, shows, watching
from tests.support.fakes.watched_name_server import EXPIRED, FakeNameServer, Refusal
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import joined
from tests.support.programs.processes import eventually
from tests.support.routes.wire_routes import route, wire_removal, wire_route


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


def test_a_watch_that_ends_as_cancelled_is_opened_again(fake: FakeNameServer) -> None:
    fake.refusals = [(grpc.StatusCode.CANCELLED, "CANCELLED", None)]
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        assert "CANCELLED" in client.status().last_error


def test_a_defect_of_the_client_does_not_end_the_watching(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: WatchStream, response: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("a defect")

    monkeypatch.setattr(WatchStream, "take", fails)
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        assert "RuntimeError('a defect')" in client.status().last_error
    assert "a defect of the client" in caplog.text


def test_a_revision_that_is_not_reached_is_resumed_from_later(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.refusals = [(grpc.StatusCode.OUT_OF_RANGE, "REVISION_NOT_REACHED", 0.05)]
        fake.cut_watches()
        _, refused, resumed = eventually(lambda: fake.watch_requests, lambda requests: len(requests) == 3)
        watching(client, fake)
    assert refused.HasField("resume_after")
    assert resumed.resume_after == refused.resume_after


def test_a_name_server_that_ends_watches_as_they_begin_is_left(fake: FakeNameServer) -> None:
    fake.refusals = [EXPIRED]
    with FakeNameServer(name="ns-b") as other, RouteClient(joined(fake, other), QUICK, [TOPIC], InOrder()) as client:
        watching(client, other)
        assert "WATCH_EXPIRED" in client.status().last_error


def test_a_name_server_that_is_not_ready_is_passed_over(fake: FakeNameServer) -> None:
    fake.serve(ready=False)
    with FakeNameServer(name="ns-b") as other, RouteClient(joined(fake, other), QUICK, rng=InOrder()) as client:
        watching(client, other)
        assert "says that it is not ready" in client.status().last_error


def test_of_unready_name_servers_the_first_that_becomes_ready_is_found(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route_client.keeper.UNREADY_SECONDS", 0.1)
    with FakeNameServer(name="ns-b") as other:
        fakes = {server.endpoint: server for server in (fake, other)}
        for server in fakes.values():
            server.serve(ready=False)
        with RouteClient([str(endpoint) for endpoint in fakes], QUICK, topics=[TOPIC]) as client:
            status = eventually(client.status, lambda status: status.endpoint is not None)
            (waiting,) = (server for endpoint, server in fakes.items() if endpoint != status.endpoint)
            waiting.serve(ready=True)
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == waiting.endpoint)


@pytest.mark.parametrize("watches", [True, False])
def test_a_name_server_that_is_not_ready_any_more_is_left(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch, watches: bool
) -> None:
    monkeypatch.setattr("route_client.keeper.RESYNC_SECONDS", 0.1)
    with FakeNameServer(name="ns-b") as other:
        fake.watches = other.watches = watches
        other.put(TOPIC, wire_route("broker-b"))
        with RouteClient(joined(fake, other), QUICK, [TOPIC], InOrder()) as client:
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == fake.endpoint)
            fake.serve(ready=False)
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == other.endpoint)
            shows(client, "broker-b")


@pytest.mark.parametrize("timeout_seconds", [0.5, TIMEOUT])  # the call ends with an error, or is hedged
def test_a_name_server_that_lets_a_lookup_wait_is_asked_last(fake: FakeNameServer, timeout_seconds: float) -> None:
    with FakeNameServer(name="ns-b") as hanging:
        hanging.hold_lookups = threading.Event()
        settings = ClientSettings(timeout_seconds=timeout_seconds)
        with RouteClient(joined(hanging, fake), settings, rng=InOrder()) as client:
            assert client.route(TOPIC).route == route()
            assert client._chooser.in_order() == [fake.endpoint, hanging.endpoint]
            hanging.hold_lookups.set()


def test_routes_stay_confirmed_while_the_second_name_server_is_asked(
    fake: FakeNameServer,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoints = joined(fake, Endpoint(*silent.getsockname()))
        with RouteClient(endpoints, ClientSettings(timeout_seconds=TIMEOUT), [TOPIC], InOrder()) as client:
            watching(client, fake)
            fake.stop()
            eventually(client.status, lambda status: status.mode == "disconnected")
            assert client.route(TOPIC).stale is None


def test_without_a_name_server_routes_come_from_disk_until_one_answers(fake: FakeNameServer, tmp_path: Path) -> None:
    settings = ClientSettings(cache_dir=tmp_path, timeout_seconds=5)
    fake.put("Other", wire_route("broker-b"))
    with RouteClient(str(fake.endpoint), settings, topics=[TOPIC, "Other"]):
        pass  # closing saves
    fake.stop()
    with RouteClient(str(fake.endpoint), settings, topics=[TOPIC]) as client:
        known = client.route(TOPIC)
        assert (known.route, known.stale, known.origin) == (route(), Stale.FROM_DISK, None)
        assert client.route("Other").stale is Stale.FROM_DISK
        assert client.select_one_queue(TOPIC).broker_name == "broker-a"
        with pytest.raises(NoNamesrvAnsweredError):
            client.route("never-seen")
        fake.start()
        shows(client)


def test_a_topic_that_really_went_is_not_on_disk_any_more(fake: FakeNameServer, tmp_path: Path) -> None:
    reasons = [wire_removal(route_data_pb2.REMOVAL_REASON_DELETED_BY_OPERATOR, broker_id=None)]
    with RouteClient(str(fake.endpoint), ClientSettings(cache_dir=tmp_path), topics=[TOPIC]) as client:
        watching(client, fake)
        eventually(lambda: list(tmp_path.glob("*.route")))
        fake.put(TOPIC, None, tuple(reasons))
        eventually(lambda: list(tmp_path.iterdir()), lambda files: not files)
