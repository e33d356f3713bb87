"""RouteClient and AioRouteClient against name servers of the contract in this process, which do what a test needs."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from route_client import (
    AioRouteClient,
    BadTopicNameError,
    ClientClosedError,
    ClientSettings,
    KnownRoute,
    NoNamesrvAnsweredError,
    NoWritableQueueError,
    RequestRefusedError,
    RouteChange,
    RouteClient,
    RouteClientError,
    Stale,
    TooManyTopicsError,
    TopicNotFoundError,
)
from route_client.watch_stream import WatchStream
from tests.processes import eventually
from tests.unit.route_client.fake_name_server import FakeNameServer
from tests.unit.route_client.routes import route, wire_removal, wire_route

TOPIC = "TopicTest"
NOBODY = "127.0.0.1:1"
WAIT = 30.0
QUICK = ClientSettings(poll_seconds=0.05, timeout_seconds=5.0)


@pytest.fixture(autouse=True)
def _nothing_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR, logger="asyncio"):
        yield
    eventually(lambda: [t.name for t in threading.enumerate() if t.name.startswith("route-client")], lambda t: not t)
    complaints = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert not complaints


@pytest.fixture
def fake() -> Iterator[FakeNameServer]:
    with FakeNameServer() as server:
        server.put(TOPIC, wire_route())
        yield server


def first_is(server: FakeNameServer, *others: str) -> tuple[str, random.Random]:
    """A list of name servers, and a random number generator with which the client begins with the first of them."""
    listed = [str(server.endpoint), *others]
    for seed in range(1_000):
        shuffled = list(listed)
        random.Random(seed).shuffle(shuffled)
        if shuffled[0] == listed[0]:
            return ";".join(listed), random.Random(seed)
    raise AssertionError("no such order")


def watching(client: RouteClient, server: FakeNameServer) -> None:
    eventually(client.status, lambda status: status.mode == "watch" and status.endpoint == server.endpoint)


def shows(client: RouteClient, *groups: str, topic: str = TOPIC, stale: Stale | None = None, **kwargs: Any) -> None:
    """Waits until the client's route has these groups."""

    def matches(known: KnownRoute | None) -> bool:
        return known is not None and known.route == route(*groups, **kwargs) and known.stale == stale

    eventually(lambda: client.cached(topic), matches)


def gone(client: RouteClient, topic: str = TOPIC) -> None:
    eventually(lambda: client.cached(topic), lambda known: known is not None and known.route is None)


# Watching and polling


def test_a_topic_is_added_on_first_use_and_changes_arrive(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK) as client:
        assert client.cached(TOPIC) is None
        assert client.route(TOPIC).route == route()
        eventually(lambda: [list(request.topics) for request in fake.watch_requests], lambda all_: [TOPIC] in all_)
        watching(client, fake)
        fake.put(TOPIC, wire_route("broker-a", "broker-b"))
        shows(client, "broker-a", "broker-b")
        assert fake.look_ups == [[TOPIC]], "no polling beside a watch"


def test_topics_given_at_the_start_are_looked_up_in_one_batch(fake: FakeNameServer) -> None:
    fake.put("Other", wire_route("broker-b"))
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC, "Other", "Missing"]) as client:
        assert fake.look_ups == [[TOPIC, "Other", "Missing"]]
        assert client.route("Other").route == route("broker-b")
        eventually(lambda: client.status().mode, lambda mode: mode == "watch")
        with pytest.raises(TopicNotFoundError, match=r"ns-a knows no topic 'Missing'"):
            client.route("Missing")
    assert len(fake.watch_requests) == 1


def test_topics_added_later_join_the_watch(fake: FakeNameServer) -> None:
    for number in range(5):
        fake.put(f"topic-{number}", wire_route())

    async def run() -> None:
        async with AioRouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
            await asyncio.to_thread(eventually, lambda: client.status().mode, lambda mode: mode == "watch")
            await asyncio.gather(*(client.route(f"topic-{number}") for number in range(5)))
            await asyncio.to_thread(eventually, lambda: len(fake.watch_requests), lambda number: number == 2)
            with client.changes(["topic-3"]) as changes:
                fake.put("topic-3", wire_route("broker-z"))
                assert (await anext(changes)).new_route == route("broker-z")

    asyncio.run(run())
    assert [len(asked) for asked in fake.look_ups] == [1, 5], "those that are asked for together"
    assert [len(request.topics) for request in fake.watch_requests] == [1, 6]


def test_a_topic_that_is_not_there_yet_arrives_when_it_comes_and_is_not_asked_for_again(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=["Later"]) as client:
        watching(client, fake)
        for _ in range(3):
            with pytest.raises(TopicNotFoundError):
                client.route("Later")
        assert len(fake.look_ups) == 1
        fake.put("Later", wire_route())
        shows(client, topic="Later")


def test_where_there_is_no_watch_routes_are_polled(fake: FakeNameServer) -> None:
    fake.watches = False
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        eventually(lambda: client.status().mode, lambda mode: mode == "poll")
        assert "NOT_IMPLEMENTED" in client.status().last_error
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")


def test_the_watch_is_tried_again_where_there_was_none(fake: FakeNameServer) -> None:
    fake.watches = False
    settings = ClientSettings(poll_seconds=0.02, resync_seconds=0.1)
    with RouteClient(str(fake.endpoint), settings, topics=[TOPIC]) as client:
        eventually(lambda: client.status().mode, lambda mode: mode == "poll")
        fake.watches = True
        watching(client, fake)


def test_watching_can_be_off(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), ClientSettings(watch=False, poll_seconds=0.05), topics=[TOPIC]) as client:
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")
        assert fake.watch_requests == []


def test_where_there_are_too_many_watches_routes_are_polled(fake: FakeNameServer) -> None:
    fake.refusals = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED", None)]
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        eventually(lambda: client.status().mode, lambda mode: mode == "poll")


def test_a_watch_that_says_nothing_does_not_hide_changes_for_ever(fake: FakeNameServer) -> None:
    def says_nothing(message: Any) -> Any:
        del message.changes[:]
        return message

    fake.spoil = says_nothing
    with RouteClient(str(fake.endpoint), ClientSettings(resync_seconds=0.1), topics=[TOPIC]) as client:
        watching(client, fake)
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")


def test_look_ups_of_one_topic_at_the_same_time_are_one_call(fake: FakeNameServer) -> None:
    fake.hold_look_ups = threading.Event()

    async def run() -> list[KnownRoute]:
        async with AioRouteClient(str(fake.endpoint), QUICK) as client:
            asked = [asyncio.create_task(client.route(TOPIC)) for _ in range(20)]
            await asyncio.to_thread(eventually, lambda: list(fake.look_ups))
            assert fake.hold_look_ups is not None
            fake.hold_look_ups.set()
            return list(await asyncio.gather(*asked))

    assert {known.route for known in asyncio.run(run())} == {route()}
    assert fake.look_ups == [[TOPIC]]


# Failing over


def test_it_fails_over_at_once_and_stays_with_the_one_that_works(fake: FakeNameServer) -> None:
    with FakeNameServer(name="ns-b", epoch="0000-b") as other:
        other.put(TOPIC, wire_route("broker-b"))
        endpoints, rng = first_is(fake, str(other.endpoint))
        with RouteClient(endpoints, QUICK, topics=[TOPIC], rng=rng) as client:
            watching(client, fake)
            fake.stop()
            watching(client, other)
            shows(client, "broker-b")
            known = client.route(TOPIC)
            assert known.origin is not None
            assert known.origin.epoch == "0000-b", "lower than the first one's, and believed"
            assert not other.watch_requests[0].HasField("resume_after"), "full state from another name server"
            fake.start()
            other.put(TOPIC, wire_route("broker-c"))
            shows(client, "broker-c")
            assert client.status().endpoint == other.endpoint


def test_a_connection_that_breaks_is_resumed_at_the_same_name_server(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.cut_watches()
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")
        resumed = fake.watch_requests[-1].resume_after
        assert (resumed.epoch, resumed.revision) == (fake.epoch, 2)


def test_a_name_server_with_another_epoch_after_a_reconnect_is_asked_for_everything(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.stop()
        fake.epoch, fake.revision, fake.told = "0002-a", 0, {}
        fake.put(TOPIC, wire_route("broker-b"))
        fake.start()
        shows(client, "broker-b")
        assert fake.watch_requests[-2].resume_after.epoch == "0001-a"
        assert not fake.watch_requests[-1].HasField("resume_after")


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


def test_a_compacted_revision_is_begun_anew(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.compacted = True
        fake.cut_watches()
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")


@pytest.mark.parametrize("what", ["revision", "epoch"])
def test_a_watch_whose_revision_or_epoch_goes_back_is_opened_anew(fake: FakeNameServer, what: str) -> None:
    spoilt: list[object] = []

    def goes_back(message: Any) -> Any:
        if not spoilt and message.changes[0].route.broker_datas[0].broker_name != "broker-a":
            spoilt.append(message)
            value = -5 if what == "revision" else "0000-z"
            setattr(message.header, what, value)
        return message

    fake.spoil = goes_back
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")
        eventually(lambda: len(fake.watch_requests), lambda number: number == 2)
        assert not fake.watch_requests[-1].HasField("resume_after")
        assert "the watch went" in client.status().last_error


def test_a_name_server_that_shuts_down_is_left_alone_for_as_long_as_it_asks(fake: FakeNameServer) -> None:
    with FakeNameServer(name="ns-b") as other:
        other.put(TOPIC, wire_route("broker-b"))
        fake.refusals = [(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", 60.0)]
        endpoints, rng = first_is(fake, str(other.endpoint))
        with RouteClient(endpoints, QUICK, topics=[TOPIC], rng=rng) as client:
            watching(client, other)
            other.cut_watches()
            eventually(lambda: len(other.watch_requests), lambda number: number >= 2)
            watching(client, other)
            assert len(fake.watch_requests) == 1


def test_a_name_server_that_is_not_ready_is_passed_over_and_used_if_there_is_no_other(fake: FakeNameServer) -> None:
    with FakeNameServer(name="ns-b") as other:
        fake.serve(ready=False)
        endpoints, rng = first_is(fake, str(other.endpoint))
        with RouteClient(endpoints, QUICK, rng=rng) as client:
            watching(client, other)
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        assert client.route(TOPIC).route == route()


@pytest.mark.parametrize("watches", [True, False])
def test_a_name_server_that_is_not_ready_any_more_is_left(fake: FakeNameServer, watches: bool) -> None:
    settings = ClientSettings(poll_seconds=0.05, resync_seconds=0.1)
    with FakeNameServer(name="ns-b") as other:
        fake.watches = other.watches = watches
        other.put(TOPIC, wire_route("broker-b"))
        endpoints, rng = first_is(fake, str(other.endpoint))
        with RouteClient(endpoints, settings, topics=[TOPIC], rng=rng) as client:
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == fake.endpoint)
            fake.serve(ready=False)
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == other.endpoint)
            shows(client, "broker-b")


def test_a_topic_that_a_name_server_does_not_know_yet_is_asked_for_elsewhere(fake: FakeNameServer) -> None:
    with FakeNameServer(name="ns-b") as other:
        other.warming = {TOPIC, "Nowhere"}
        fake.warming = {"Nowhere"}
        endpoints, rng = first_is(other, str(fake.endpoint))
        with RouteClient(endpoints, QUICK, rng=rng) as client:
            assert client.route(TOPIC).route == route()
            with pytest.raises(NoNamesrvAnsweredError, match="REGISTRY_WARMING") as caught:
                client.route("Nowhere")
            assert set(caught.value.errors) == {fake.endpoint, other.endpoint}


def test_a_name_server_that_hangs_is_passed_over(fake: FakeNameServer) -> None:
    with FakeNameServer(name="ns-b") as hanging:
        hanging.hold_look_ups = threading.Event()
        endpoints, rng = first_is(hanging, str(fake.endpoint))
        with RouteClient(endpoints, ClientSettings(timeout_seconds=1.5), rng=rng) as client:
            assert client.route(TOPIC).route == route()
            hanging.hold_look_ups.set()


# What is wrong


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
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    stranger = grpc.server(ThreadPoolExecutor(max_workers=2))
    port = stranger.add_insecure_port("127.0.0.1:0")
    stranger.start()
    try:
        endpoint = f"127.0.0.1:{port}"
        with RouteClient(endpoint, QUICK) as client, pytest.raises(NoNamesrvAnsweredError, match="UNIMPLEMENTED"):
            client.route(TOPIC)
        with RouteClient(f"{endpoint};{fake.endpoint}", QUICK) as client:
            assert client.route(TOPIC).route == route()
            watching(client, fake)
    finally:
        stranger.stop(None).wait(WAIT)


def test_something_that_does_not_speak_grpc_is_passed_over(fake: FakeNameServer) -> None:
    import socket  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with RouteClient(f"127.0.0.1:{port};{fake.endpoint}", ClientSettings(timeout_seconds=1.5)) as client:
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
        for name in ("", "not a name", "x" * 128):
            with pytest.raises(BadTopicNameError, match="name"):
                client.route(name)
    assert fake.look_ups == []


def test_a_name_server_s_refusal_is_told_with_its_reason(fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.route_client.fake_name_server import abort  # noqa: PLC0415

    def refuses(self: Any, request: Any, context: grpc.ServicerContext) -> None:
        abort(context, grpc.StatusCode.PERMISSION_DENIED, "NOT_PERMITTED")

    fake.stop()
    monkeypatch.setattr(FakeNameServer, "BatchGetTopicRoutes", refuses)
    fake.start()
    with RouteClient(str(fake.endpoint), QUICK) as client:
        with pytest.raises(RequestRefusedError, match="PERMISSION_DENIED NOT_PERMITTED"):
            client.route(TOPIC)
        assert client.status().topics == 0


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


def test_a_queue_on_an_unknown_broker_can_be_read_and_not_written(fake: FakeNameServer) -> None:
    wire = wire_route("broker-a", "broker-b", queues=1)
    del wire.broker_datas[1]
    fake.put(TOPIC, wire)
    with RouteClient(str(fake.endpoint), QUICK) as client:
        assert [queue.broker_name for queue in client.publish_info(TOPIC).queues] == ["broker-a"]
        assert [queue.broker_name for queue in client.subscribe_info(TOPIC)] == ["broker-a", "broker-b"]


def test_there_is_a_most_of_topics_and_room_after_one_is_forgotten(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), ClientSettings(max_topics=1), topics=[TOPIC]) as client:
        with pytest.raises(TooManyTopicsError):
            client.route("Other")
        client.forget(TOPIC)
        assert client.cached(TOPIC) is None
        with pytest.raises(TopicNotFoundError):
            client.route("Other")


def test_topics_can_come_and_go_while_they_are_watched(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        eventually(lambda: fake.open_watches, lambda number: number == 1)
        client.forget(TOPIC)
        eventually(lambda: fake.open_watches, lambda number: number == 0)
        assert client.route(TOPIC).route == route()
        eventually(lambda: fake.open_watches, lambda number: number == 1)
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")
        assert client.status().sessions == 1


@pytest.mark.parametrize("ask", [RouteClient.divergence, RouteClient.route])
def test_whoever_waits_for_an_answer_while_the_client_is_closed_is_told(
    fake: FakeNameServer, ask: Callable[[RouteClient, str], object]
) -> None:
    fake.hold_look_ups = threading.Event()
    client = RouteClient(str(fake.endpoint), QUICK)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            ask(client, TOPIC)
        except RouteClientError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: list(fake.look_ups))
    client.close()
    waiter.join(WAIT)
    fake.hold_look_ups.set()
    assert [type(error) for error in errors] == [ClientClosedError]


def test_a_closed_client_says_so_and_can_be_closed_again(fake: FakeNameServer) -> None:
    client = RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC])
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        client.route(TOPIC)
    with pytest.raises(ClientClosedError):
        client.divergence(TOPIC)
    eventually(lambda: fake.open_watches, lambda number: number == 0)


# Losses


def test_an_empty_answer_is_held_back_told_and_taken_after_its_time(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), ClientSettings(hold_seconds=0.3), topics=[TOPIC]) as client:
        watching(client, fake)
        changes = client.changes()
        fake.put(TOPIC, None, (wire_removal(route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED),))
        held = changes.take(WAIT)
        assert held is not None
        assert (held.after.stale, held.after.route) == (Stale.HELD, route())
        taken = changes.take(WAIT)
        assert taken is not None
        assert taken.after.route is None
        counters = client.status().counters
        assert (counters.held, counters.holds_expired) == (1, 1)


def test_a_restarted_name_server_that_knows_nothing_yet_takes_no_route_away(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.stop()
        eventually(lambda: client.route(TOPIC).stale, lambda stale: stale is Stale.DISCONNECTED)
        fake.epoch, fake.revision, fake.told = "0002-a", 0, {}
        fake.start()
        shows(client, stale=Stale.HELD)
        assert client.status().held_topics == (TOPIC,)
        assert client.select_one_queue(TOPIC).broker_name == "broker-a"
        fake.put(TOPIC, wire_route())
        shows(client)
        assert client.status().counters.holds_averted == 1


def test_a_loss_for_a_reason_is_taken_at_once(fake: FakeNameServer) -> None:
    reasons = [wire_removal(route_data_pb2.REMOVAL_REASON_UNREGISTERED, broker_id=id_) for id_ in (0, 1)]
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.put(TOPIC, None, tuple(reasons))
        gone(client)
        with pytest.raises(TopicNotFoundError):
            client.route(TOPIC)


def test_polled_answers_carry_no_reasons_so_they_are_held_back(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), ClientSettings(watch=False, poll_seconds=0.05), topics=[TOPIC]) as client:
        fake.put(TOPIC, None)
        shows(client, stale=Stale.HELD)


# The disk cache


def test_without_a_name_server_routes_come_from_disk_and_are_fresh_once_one_answers(
    fake: FakeNameServer, tmp_path: Path
) -> None:
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


def test_a_corrupt_cache_file_is_refused_and_counted(fake: FakeNameServer, tmp_path: Path) -> None:
    settings = ClientSettings(cache_dir=tmp_path, timeout_seconds=5)
    with RouteClient(str(fake.endpoint), settings, topics=[TOPIC]):
        pass
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    fake.stop()
    with RouteClient(str(fake.endpoint), settings) as client:
        with pytest.raises(NoNamesrvAnsweredError):
            client.route(TOPIC)
        assert client.status().cache_files_refused == 1


def test_a_topic_that_really_went_is_not_on_disk_any_more(fake: FakeNameServer, tmp_path: Path) -> None:
    reasons = [wire_removal(route_data_pb2.REMOVAL_REASON_DELETED_BY_OPERATOR, broker_id=None)]
    with RouteClient(str(fake.endpoint), ClientSettings(cache_dir=tmp_path), topics=[TOPIC]) as client:
        watching(client, fake)
        eventually(lambda: list(tmp_path.glob("*.route")))
        fake.put(TOPIC, None, tuple(reasons))
        eventually(lambda: list(tmp_path.iterdir()), lambda files: not files)
        gone(client)


# Producers


def test_a_topic_without_a_route_goes_to_the_default_topic_s_brokers_until_it_has_one(fake: FakeNameServer) -> None:
    fake.put("TBW102", wire_route("broker-d", queues=8, perm=7))
    with RouteClient(str(fake.endpoint), QUICK) as client:
        info = client.publish_info("NewTopic")
        assert (len(info.queues), info.by_default) == (4, True)
        assert client.select_one_queue("NewTopic").topic == "NewTopic"
        fake.put("NewTopic", wire_route("broker-e", queues=2))
        eventually(lambda: client.publish_info("NewTopic").by_default, lambda by_default: not by_default)
        assert client.select_one_queue("NewTopic").broker_name == "broker-e"


def test_without_a_default_topic_an_unknown_topic_is_an_error(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK) as client, pytest.raises(TopicNotFoundError, match="'NewTopic'"):
        client.publish_info("NewTopic")
    nobody_s = ClientSettings(default_topic="")
    with RouteClient(str(fake.endpoint), nobody_s) as client, pytest.raises(TopicNotFoundError, match="'NewTopic'"):
        client.publish_info("NewTopic")
    assert [TOPIC] not in fake.look_ups


def test_a_route_without_a_writable_queue_is_an_error_when_a_queue_is_selected(fake: FakeNameServer) -> None:
    fake.put(TOPIC, wire_route(perm=4))
    with RouteClient(str(fake.endpoint), QUICK) as client, pytest.raises(NoWritableQueueError):
        client.select_one_queue(TOPIC)


def test_faulty_brokers_are_avoided_if_that_is_on(fake: FakeNameServer) -> None:
    fake.put(TOPIC, wire_route("broker-a", "broker-b"))
    with RouteClient(str(fake.endpoint), ClientSettings(send_latency_fault_enable=True)) as client:
        client.faults.report("broker-a", 0, failed=True)
        assert {client.select_one_queue(TOPIC).broker_name for _ in range(8)} == {"broker-b"}


def test_addresses_come_from_the_kept_routes(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        assert client.find_broker_address_in_publish("broker-a") == "broker-a:10911"
        assert client.find_broker_address_in_subscribe("broker-a", 1) == ("broker-a:10912", 1)
        assert client.any_broker_of(TOPIC) == "broker-a:10911"


# Divergence


def test_divergence_asks_every_name_server(fake: FakeNameServer) -> None:
    with FakeNameServer(name="ns-b") as other:
        other.put(TOPIC, wire_route(ids=(0,)))
        with RouteClient(f"{fake.endpoint};{other.endpoint};{NOBODY}", QUICK) as client:
            found = client.divergence(TOPIC)
            assert not found.agree
            ((member, having),) = found.partial_brokers.items()
            assert (member[1], having) == (1, (fake.endpoint,))
            assert [str(endpoint) for endpoint in found.errors] == [NOBODY]
            other.put(TOPIC, wire_route())
            assert client.divergence(TOPIC).agree


# Callbacks and iterators


def test_callbacks_that_raise_or_block_harm_nobody(fake: FakeNameServer, caplog: pytest.LogCaptureFixture) -> None:
    release, entered = threading.Event(), threading.Event()
    seen: list[RouteChange] = []

    def raises(_: RouteChange) -> None:
        raise RuntimeError("of the callback")

    def blocks(_: RouteChange) -> None:
        entered.set()
        release.wait(WAIT)

    with RouteClient(str(fake.endpoint), QUICK) as client:
        client.on_change(raises)
        client.on_change(blocks)
        end = client.on_change(seen.append, topics=[TOPIC])
        client.route(TOPIC)
        watching(client, fake)
        assert entered.wait(WAIT)
        for number in range(1, 6):
            fake.put(TOPIC, wire_route(queues=number))
            shows(client, queues=number)
        eventually(lambda: seen[-1].after.route, lambda told: told == route(queues=5))
        eventually(lambda: client.status().callback_failures, lambda failures: failures >= 2)
        end()
        told = len(seen)
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")
        assert len(seen) == told
        release.set()
    assert "a callback for route changes raised" in caplog.text


def test_a_callback_may_close_its_client(fake: FakeNameServer) -> None:
    client = RouteClient(str(fake.endpoint), QUICK)
    closed = threading.Event()

    def closes(_: RouteChange) -> None:
        client.close()
        closed.set()

    client.on_change(closes)
    client.route(TOPIC)
    assert closed.wait(WAIT)


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
        async with asyncio.timeout(WAIT):  # for gRPC's own task of the call that was cancelled
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
        return seen

    assert asyncio.run(run()) == [5, 6, 7]


def test_a_dns_name_stands_for_all_of_its_addresses(fake: FakeNameServer) -> None:
    with RouteClient(f"dns:localhost:{fake.endpoint.port}", QUICK) as client:
        assert client.route(TOPIC).route == route()


def test_the_environment_names_the_name_servers(fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", str(fake.endpoint))
    with RouteClient(settings=QUICK) as client:
        assert client.route(TOPIC).route == route()


def test_more_topics_than_a_stream_takes_are_watched_by_several(fake: FakeNameServer) -> None:
    names = [f"topic-{number}" for number in range(1_100)]
    for name in names:
        fake.put(name, wire_route())
    with RouteClient(str(fake.endpoint), QUICK, topics=names) as client:
        eventually(lambda: fake.open_watches, lambda number: number == 3)
        fake.put(names[-1], wire_route("broker-z"))
        shows(client, "broker-z", topic=names[-1])
    assert [len(asked) for asked in fake.look_ups] == [500, 500, 100]
    assert isinstance(fake.watch_requests[0], pb.WatchTopicRoutesRequest)
