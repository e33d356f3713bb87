"""What a client does with wrong answers, wrong questions and limits, and when it is closed."""

from __future__ import annotations

import threading
from unittest import mock

import pytest
from google.protobuf.message import Message

from namesrv_common.client.response_limits import ResponseLimits
from route_client import (
    BadTopicNameError,
    ClientClosedError,
    ClientSettings,
    NoNamesrvAnsweredError,
    RouteClient,
    RouteClientError,
    TooManyTopicsError,
    TopicNotFoundError,
    cache,
    watch_stream,
)
from tests.integration.route_client.sessions import NOBODY, QUICK, TOPIC, first_is, shows, watching
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.fakes.watched_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually
from tests.support.routes.wire_routes import route, wire_route


def test_where_nobody_answers_each_error_is_named_and_the_client_works_once_somebody_does() -> None:
    server = FakeNameServer()
    server.put(TOPIC, wire_route())
    server.start()
    server.stop()
    with RouteClient(f"{NOBODY};{server.endpoint}", QUICK) as client:
        with pytest.raises(NoNamesrvAnsweredError, match=r"127\.0\.0\.1:1: UNAVAILABLE") as caught:
            client.route(TOPIC)
        assert {str(endpoint) for endpoint in caught.value.errors} == {NOBODY, str(server.endpoint)}
        with server:
            shows(client)


def test_another_service_on_the_port_is_passed_over(fake: FakeNameServer) -> None:
    with ScriptedNamesrv() as stranger:
        with RouteClient(str(stranger.endpoint), QUICK) as client, pytest.raises(NoNamesrvAnsweredError) as caught:
            client.route(TOPIC)
        assert "UNIMPLEMENTED" in str(caught.value)
        with RouteClient(f"{stranger.endpoint};{fake.endpoint}", QUICK) as client:
            assert client.route(TOPIC).route == route()
            watching(client, fake)


def test_bytes_that_are_no_messages_are_an_error_of_their_name_server(
    fake: FakeNameServer, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeNameServer(name="ns-b", garbles=True) as other:
        endpoints, rng = first_is(other, str(fake.endpoint))
        with RouteClient(str(other.endpoint), QUICK) as client, pytest.raises(NoNamesrvAnsweredError, match="INTERNAL"):
            client.route(TOPIC)
        with RouteClient(endpoints, QUICK, topics=[TOPIC], rng=rng) as client:
            watching(client, fake)
            assert client.route(TOPIC).route == route()
    assert "a defect of the client" not in caplog.text


def test_a_name_that_breaks_the_rules_is_refused_without_asking(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK) as client:
        for name in ("", "not\ta name", "x" * 401):
            with pytest.raises(BadTopicNameError, match="name"):
                client.route(name)
    assert fake.lookups == []


def test_a_route_that_no_broker_can_have_is_refused_and_the_old_one_stays(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.put(TOPIC, wire_route("broker-b", queues=70_000))
        eventually(lambda: client.status().counters.refused)
        assert client.route(TOPIC).route == route()
        fake.put("Impossible", wire_route(queues=70_000))
        with pytest.raises(NoNamesrvAnsweredError, match="70000"):
            client.route("Impossible")
        fake.put(TOPIC, wire_route("broker-c"))
        shows(client, "broker-c")


def test_there_is_a_most_of_topics_and_room_after_one_is_forgotten(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), ClientSettings(max_topics=1), topics=[TOPIC]) as client:
        with pytest.raises(TooManyTopicsError, match=r"1 topics.*'Other'"):
            client.route("Other")
        client.forget(TOPIC)
        assert client.cached(TOPIC) is None
        with pytest.raises(TopicNotFoundError):
            client.route("Other")


def test_whoever_waits_for_an_answer_while_the_client_is_closed_is_told(fake: FakeNameServer) -> None:
    fake.hold_lookups = threading.Event()
    client = RouteClient(str(fake.endpoint), QUICK)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            client.route(TOPIC)
        except RouteClientError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: list(fake.lookups))
    client.close()
    waiter.join(TIMEOUT)
    fake.hold_lookups.set()
    assert [type(error) for error in errors] == [ClientClosedError]


def test_a_closed_client_says_so_and_can_be_closed_again(fake: FakeNameServer) -> None:
    client = RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC])
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        client.route(TOPIC)
    eventually(lambda: fake.open_watches, lambda number: number == 0)


def test_a_route_that_the_client_has_no_memory_for_is_an_error_that_says_so(fake: FakeNameServer) -> None:
    with (
        mock.patch.object(cache, "MAX_ROUTE_BYTES", 10),
        RouteClient(str(fake.endpoint), QUICK) as client,
        pytest.raises(NoNamesrvAnsweredError, match=r"all routes would have \d+ bytes, over the limit of 10"),
    ):
        client.route(TOPIC)


def test_a_watch_without_a_bookmark_is_left_and_opened_again(fake: FakeNameServer) -> None:
    def without_bookmark(message: Message) -> Message:
        message.bookmark = False  # type: ignore[attr-defined]
        return message

    fake.spoil = without_bookmark
    with (
        mock.patch.object(watch_stream, "WATCH_LIMITS", ResponseLimits(bytes=0, rows=0, seconds=TIMEOUT)),
        RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client,
    ):
        eventually(lambda: client.status().last_error, lambda error: "the watch since its last bookmark has" in error)
        eventually(lambda: len(fake.watch_requests), lambda number: number >= 2)
        assert client.route(TOPIC).route == route()
