"""What producers and programs call: queues, addresses, callbacks and iterators, and the errors of wrong questions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any
from unittest import mock

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.channels import ResponseLimits
from namesrv_common.grpc_errors import RichError
from route_client import (
    AioRouteClient,
    BadTopicNameError,
    ClientClosedError,
    ClientSettings,
    NoNamesrvAnsweredError,
    RequestRefusedError,
    RouteChange,
    RouteClient,
    RouteClientError,
    TooManyTopicsError,
    TopicNotFoundError,
    cache,
    watch_stream,
)
from tests.integration.route_client.conftest import NOBODY, QUICK, TOPIC, InOrder, shows, watching
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.fakes.watched_name_server import FakeNameServer, abort
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import joined
from tests.support.programs.processes import eventually
from tests.support.routes.wire_routes import route, wire_route


def test_a_topic_without_a_route_goes_to_the_default_topics_brokers(fake: FakeNameServer) -> None:
    for settings in (QUICK, ClientSettings(default_topic="")):
        with RouteClient(str(fake.endpoint), settings) as client, pytest.raises(TopicNotFoundError, match="'NewTopic'"):
            client.publish_info("NewTopic")
    fake.put("TBW102", wire_route("broker-d", queues=8, perm=7))
    with RouteClient(str(fake.endpoint), QUICK) as client:
        info = client.publish_info("NewTopic")
        assert (len(info.queues), info.by_default) == (4, True)

        def asks() -> bool:
            asked = len(fake.lookups)
            client.publish_info("NewTopic")
            return len(fake.lookups) > asked

        eventually(asks, lambda does: not does)
        assert client.select_one_queue("NewTopic").topic == "NewTopic"
        fake.put("NewTopic", wire_route("broker-e", queues=2))
        eventually(lambda: client.publish_info("NewTopic").by_default, lambda by_default: not by_default)
        assert client.select_one_queue("NewTopic").broker_name == "broker-e"


async def test_the_asyncio_client_has_the_answers_of_the_blocking_one(fake: FakeNameServer) -> None:
    fake.put("TBW102", wire_route("broker-d", queues=8, perm=7))
    async with AioRouteClient(str(fake.endpoint), QUICK) as client:
        assert {(await client.select_one_queue(TOPIC)).broker_name for _ in range(4)} == {"broker-a"}
        assert (await client.publish_info("NewTopic")).by_default
        with await asyncio.to_thread(RouteClient, str(fake.endpoint), QUICK) as blocking:
            assert await client.subscribe_info(TOPIC) == await asyncio.to_thread(blocking.subscribe_info, TOPIC)
            assert await client.any_broker_of(TOPIC) == await asyncio.to_thread(blocking.any_broker_of, TOPIC)
        client.forget(TOPIC)
        assert client.cached(TOPIC) is None


def test_faulty_brokers_are_avoided_if_that_is_on_and_keep_addresses(fake: FakeNameServer) -> None:
    fake.put(TOPIC, wire_route("broker-a", "broker-b"))
    with RouteClient(str(fake.endpoint), ClientSettings(send_latency_fault_enable=True)) as client:
        client.faults.report("broker-a", 0, failed=True)
        assert {client.select_one_queue(TOPIC).broker_name for _ in range(8)} == {"broker-b"}
        assert client.find_broker_address_in_publish("broker-a") == "broker-a:10911"
        assert client.find_broker_address_in_subscribe("broker-a", 1) == ("broker-a:10912", 1)
        assert client.any_broker_of(TOPIC) in {"broker-a:10911", "broker-b:10911"}


def test_a_callback_may_close_its_client(fake: FakeNameServer) -> None:
    client = RouteClient(str(fake.endpoint), QUICK)
    closed = threading.Event()

    def closes(_: RouteChange) -> None:
        client.close()
        closed.set()

    client.on_change(closes)
    with contextlib.suppress(ClientClosedError):  # the callback may come before this call returns
        client.route(TOPIC)
    assert closed.wait(TIMEOUT)


def test_changes_can_be_iterated_in_asyncio(fake: FakeNameServer) -> None:
    async def run() -> list[int]:
        seen = []
        async with AioRouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
            await asyncio.to_thread(eventually, lambda: client.status().mode, lambda mode: mode == "watch")
            with client.changes() as changes:
                fake.put(TOPIC, wire_route(queues=5))
                async for change in changes:
                    assert change.after.route is not None
                    seen.append(change.after.route.queue_datas[0].read_queue_nums)
                    if len(seen) == 3:
                        break
                    fake.put(TOPIC, wire_route(queues=5 + len(seen)))
            left = asyncio.create_task(anext(client.changes(), None))
            await asyncio.sleep(0)
        assert await left is None, "closing the client ends iterations"
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith("route-client")]
        async with asyncio.timeout(TIMEOUT):  # for gRPC's own task of the call that was cancelled
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
        return seen

    assert asyncio.run(run()) == [5, 6, 7]


def test_the_environment_names_name_servers_by_a_name_that_is_resolved_again(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, failures = socket.getaddrinfo, iter(range(2))

    def fails_twice(host: str, *arguments: Any, **named: Any) -> Any:
        if host == "fleet.invalid" and next(failures, None) is not None:
            raise socket.gaierror("it is not there yet")
        return resolve("127.0.0.1" if host == "fleet.invalid" else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", fails_twice)
    monkeypatch.setattr("route_client.endpoints.REFRESH_SECONDS", 0.05)
    monkeypatch.setenv("NAMESRV_ADDR", f"dns:fleet.invalid:{fake.endpoint.port}")
    with RouteClient(settings=QUICK) as client:
        watching(client, fake)
        assert client.route(TOPIC).route == route()


def test_many_topics_are_watched_by_one_stream_and_looked_up_in_batches(fake: FakeNameServer) -> None:
    names = [f"topic-{number}" for number in range(1_100)]
    for name in names:
        fake.put(name, wire_route())
    with RouteClient(str(fake.endpoint), QUICK, topics=names) as client:
        watching(client, fake)
        fake.put(names[-1], wire_route("broker-z"))
        shows(client, "broker-z", topic=names[-1])
    assert [len(asked) for asked in fake.lookups] == [500, 500, 100]
    assert [len(request.topics) for request in fake.watch_requests] == [1_100]


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
        with RouteClient(str(other.endpoint), QUICK) as client, pytest.raises(NoNamesrvAnsweredError, match="INTERNAL"):
            client.route(TOPIC)
        with RouteClient(joined(other, fake), QUICK, [TOPIC], InOrder()) as client:
            watching(client, fake)
            assert client.route(TOPIC).route == route()
    assert "a defect of the client" not in caplog.text


def test_a_client_whose_first_topics_are_refused_does_not_start(fake: FakeNameServer) -> None:
    fake.refusal = RichError(grpc.StatusCode.PERMISSION_DENIED, "you may not look up", "NOT_PERMITTED", "namesrv")
    with pytest.raises(RequestRefusedError, match="you may not look up"):
        RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC])

    async def enter() -> None:
        async with AioRouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]):
            pass

    with pytest.raises(RequestRefusedError, match="you may not look up"):
        asyncio.run(enter())


class Sparing(FakeNameServer):
    """Answers the first topic of a lookup and leaves the others out; `Large` is too large for any answer."""

    def BatchGetTopicRoutes(  # noqa: N802
        self, request: pb.BatchGetTopicRoutesRequest, context: grpc.ServicerContext
    ) -> pb.BatchGetTopicRoutesResponse:
        first, *others = request.topics
        if first == "Large":
            abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
        answer = super().BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=[first]), context)
        answer.topics_left_out.extend(["Never"] if first == "Never" else others)
        return answer


def test_topics_left_out_of_an_answer_are_asked_for_again_unless_too_large() -> None:
    with Sparing() as sparing:
        sparing.put(TOPIC, wire_route())
        with RouteClient(str(sparing.endpoint), QUICK, topics=[TOPIC, "Other", "Large"]) as client:
            assert client.route(TOPIC).route == route()
            assert client.status().counters.refused == 1
        assert sparing.lookups[:2] == [[TOPIC], ["Other"]]
        with (
            RouteClient(str(sparing.endpoint), QUICK) as client,
            pytest.raises(NoNamesrvAnsweredError, match="leaves all topics of a batch out"),
        ):
            client.route("Never")


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
        problem = "the route of topic 'Impossible': read_queue_nums of broker 'broker-a' is 70000, not 0 to 65535"
        with pytest.raises(NoNamesrvAnsweredError, match=problem):
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


def test_a_closed_client_says_so_also_to_whoever_waits_for_an_answer(fake: FakeNameServer) -> None:
    client = RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC])
    watching(client, fake)
    fake.hold_lookups = threading.Event()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            client.route("Other")
        except RouteClientError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: ["Other"] in fake.lookups)
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        client.route(TOPIC)
    waiter.join(TIMEOUT)
    fake.hold_lookups.set()
    assert [type(error) for error in errors] == [ClientClosedError]
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
