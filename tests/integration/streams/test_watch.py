"""WatchTopicRoutes over the wire."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Self

import grpc
import pytest
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import RichError
from namesrv import limits
from namesrv.core.changes import MAX_CHANGE_ROWS
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, register, registration, topic_config, unregister
from tests.support.routes.watch_validators import Lookup, WatchedStream, check_promises, last_bookmark

TIMEOUT = 20.0
WATCH = "/namesrv_api.v1.RouteService/WatchTopicRoutes"
FOLLOW = "/namesrv_api.v1.RouteService/StreamRouteSnapshot"
NO_SCAN = ("--scan-not-active-broker-interval-millis", "0")


class Watch:
    """An open stream, read by a thread of its own; ends with the context."""

    def __init__(self, client: Client, request: pb.WatchTopicRoutesRequest) -> None:
        self.stream = WatchedStream(request)
        self.error: grpc.RpcError | None = None
        self._requests: queue.SimpleQueue[pb.WatchTopicRoutesRequest | None] = queue.SimpleQueue()
        self._requests.put(request)
        self._call: Any = client.routes.WatchTopicRoutes(iter(self._requests.get, None), timeout=60)
        self._messages: queue.SimpleQueue[pb.WatchTopicRoutesResponse | grpc.RpcError] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._messages.put(message)
        except grpc.RpcError as error:
            self._messages.put(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.half_close()
        self._call.cancel()
        self._thread.join(TIMEOUT)

    def change(self, *topics: str, **fields: Any) -> None:
        """Adds topics, or removes some."""
        request = pb.WatchTopicRoutesRequest(topics=topics, **fields)
        self.stream.later.append(request)
        self._requests.put(request)

    def half_close(self) -> None:
        """Ends the stream of requests."""
        self._requests.put(None)

    def next_message(self) -> pb.WatchTopicRoutesResponse:
        """The next message; fails if the stream ends instead."""
        message = self._messages.get(timeout=TIMEOUT)
        assert isinstance(message, pb.WatchTopicRoutesResponse), message
        self.stream.messages.append(message)
        return message

    def next_changes(self) -> dict[str, pb.TopicRouteChange]:
        """The changes up to the next bookmark, by topic."""
        changes: dict[str, pb.TopicRouteChange] = {}
        while True:
            message = self.next_message()
            changes |= {change.topic: change for change in message.changes}
            if message.bookmark:
                return changes

    def changes_until(self, request_count: int) -> dict[str, pb.TopicRouteChange]:
        """The changes up to the bookmark that counts so many requests, by topic."""
        changes = self.next_changes()
        while self.stream.messages[-1].request_count < request_count:
            changes |= self.next_changes()
        return changes

    def failure(self) -> RichError:
        """What the stream ends with; passes over messages before it."""
        while True:
            message = self._messages.get(timeout=TIMEOUT)
            if isinstance(message, grpc.RpcError):
                return RichError.of(message)
            self.stream.messages.append(message)


def request(
    *topics: str, prefixes: Sequence[str] = (), after: tuple[str, int] | None = None, zone: str | None = None
) -> pb.WatchTopicRoutesRequest:
    made = pb.WatchTopicRoutesRequest(topics=topics, topic_prefixes=prefixes, zone_name=zone)
    if after is not None:
        made.resume_after.epoch, made.resume_after.revision = after
    return made


def test_a_watch_begins_with_the_current_routes_and_tells_what_is_absent_and_when_it_comes(client: Client) -> None:
    register(client, "T1", "T2")
    with Watch(client, request("T1", "later")) as watch:
        first = watch.next_changes()
        assert first.keys() == {"T1", "later"}
        assert first["T1"].route == client.route("T1")
        assert not first["later"].HasField("route")
        register(client, "later", name="broker-b", port=20911)
        assert watch.next_changes()["later"].route == client.route("later")
        check_promises([[watch.stream]], [])


def test_a_watch_is_told_why_a_topic_went(client: Client) -> None:
    register(client, "T1")
    with Watch(client, request("T1")) as watch:
        watch.next_changes()
        unregister(client)
        change = watch.next_changes()["T1"]
        assert not change.HasField("route")
        (removal,) = change.removals
        assert removal == pb.BrokerRemoval(
            cluster_name="DefaultCluster",
            broker_name="broker-a",
            broker_id=0,
            broker_addr="127.0.0.1:10911",
            reason=route_data_pb2.REMOVAL_REASON_UNREGISTERED,
        )


def test_prefixes_are_watched_also_for_topics_that_come_later(client: Client) -> None:
    register(client, "order-1", "other")
    with Watch(client, request(prefixes=["order-"])) as watch:
        assert watch.next_changes().keys() == {"order-1"}
        register(client, "order-1", "order-2", "other-2", counter=2)
        assert "order-2" in watch.next_changes()
        check_promises([[watch.stream]], [])


def test_topics_are_added_to_an_open_watch_and_removed_from_it(client: Client) -> None:
    register(client, "T1", "T2", "order-1")
    with Watch(client, request("T1")) as watch:
        watch.next_changes()
        watch.change("T2", "later", topic_prefixes=["order-"])
        added = watch.changes_until(2)
        assert added.keys() == {"T2", "later", "order-1"}
        assert added["T2"].route == client.route("T2")
        assert not added["later"].HasField("route")
        watch.change(removed_topics=["T1"], removed_topic_prefixes=["order-"])
        assert watch.changes_until(3) == {}
        register(client, "T1", "T2", "order-1", "order-2", "later", name="broker-b", port=20911)
        assert watch.next_changes().keys() == {"T2", "later"}
        check_promises([[watch.stream]], [])


def test_a_watch_resumes_with_the_topics_of_its_bookmark_and_adds_the_others(client: Client) -> None:
    register(client, "T1", "T2")
    with Watch(client, request("T1")) as watch:
        watch.next_changes()
    register(client, "T1", "T2", name="broker-b", port=20911)
    with Watch(client, request("T1", after=last_bookmark([watch.stream]))) as resumed:
        resumed.change("T2")
        changes = resumed.changes_until(2)
        assert {topic: change.route for topic, change in changes.items()} == {
            topic: client.route(topic) for topic in ("T1", "T2")
        }
        check_promises([[watch.stream, resumed.stream]], [])


def test_a_watch_goes_on_when_its_client_sends_nothing_more(client: Client) -> None:
    register(client, "T1")
    with Watch(client, request("T1")) as watch:
        watch.half_close()
        watch.next_changes()
        register(client, "T1", name="broker-b", port=20911)
        assert watch.next_changes().keys() == {"T1"}


def test_a_change_of_a_watch_that_breaks_a_rule_ends_it_with_the_error(client: Client) -> None:
    many = [f"many-{number}" for number in range(limits.MAX_WATCH_TOPICS)]
    refused: tuple[tuple[list[str], dict[str, Any], str, str], ...] = (
        (["a b"], {}, "INVALID_FIELD", "topics[0]"),
        ([], {"zone_name": "z"}, "INVALID_FIELD", "zone_name"),
        ([], {"resume_after": pb.ResumePoint(epoch="e")}, "INVALID_FIELD", "resume_after"),
        (many, {}, "LIMIT_EXCEEDED", "topics of one watch"),
    )
    for topics, fields, reason, name in refused:
        with Watch(client, request("T1")) as watch:
            watch.next_changes()
            watch.change(*topics, **fields)
            error = watch.failure()
            assert (error.reason, error.metadata.get("field") or error.metadata.get("name")) == (reason, name)


def test_a_killed_broker_s_channel_tells_the_watch(client: Client) -> None:
    channel = client.open_channel()
    broker = identity()
    client.registration.RegisterBroker(registration(["T1"], broker, channel_id=channel.id), timeout=TIMEOUT)
    with Watch(client, request("T1")) as watch:
        watch.next_changes()
        channel.close()
        (removal,) = watch.next_changes()["T1"].removals
        assert removal.reason == route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED


def test_a_watch_that_resumes_is_told_what_it_missed_and_nothing_else(client: Client) -> None:
    register(client, "T1", "T2", "T3")
    with Watch(client, request("T1", "T2", "T3")) as watch:
        watch.next_changes()
    register(client, "T2", name="broker-b", port=20911)
    point = last_bookmark([watch.stream])
    with Watch(client, request("T1", "T2", "T3", after=point)) as resumed:
        assert resumed.next_changes().keys() == {"T2"}
        check_promises([[watch.stream, resumed.stream]], [])


def test_ten_thousand_topics_of_a_registration_come_in_few_messages_with_one_bookmark(client: Client) -> None:
    topics = [f"T{number}" for number in range(10_000)]
    with Watch(client, request(prefixes=["T"])) as watch:
        assert watch.next_changes() == {}
        register(client, *topics)
        assert watch.next_changes().keys() == set(topics)
        assert len(watch.stream.messages) < 30
        unregister(client)
        gone = watch.next_changes()
        assert gone.keys() == set(topics)
        assert all(not change.HasField("route") and len(change.removals) == 1 for change in gone.values())
        check_promises([[watch.stream]], [])


def test_a_drained_broker_s_routes_are_sent_again(tmp_path: Path) -> None:
    arguments = (*NO_SCAN, "--data-dir", str(tmp_path), "--order-message-enable")
    with NamesrvProcess(*arguments) as namesrv, namesrv.connect() as client:
        register(client, "T1")
        with Watch(client, request("T1")) as watch:
            watch.next_changes()
            client.admin.WipeWritePermOfBroker(
                admin_service_pb2.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a", comment="test"),
                timeout=TIMEOUT,
            )
            assert watch.next_changes()["T1"].route.queue_datas[0].perm == 4
            client.admin.PutKvConfig(
                admin_service_pb2.PutKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key="T1", value="broker-a:4"),
                timeout=TIMEOUT,
            )
            assert watch.next_changes()["T1"].route.order_topic_conf == "broker-a:4"


@pytest.mark.own_server
def test_watches_are_told_to_go_elsewhere_at_a_shutdown_each_at_another_time(
    namesrv: NamesrvProcess, client: Client
) -> None:
    with contextlib.ExitStack() as open_watches:
        watches = [open_watches.enter_context(Watch(client, request("T1"))) for _ in range(20)]
        for watch in watches:
            watch.next_changes()
        assert namesrv.terminate() == 0
        errors = [watch.failure() for watch in watches]
    assert {(error.code, error.reason) for error in errors} == {(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")}
    assert len({error.retry_after_seconds for error in errors}) > 1


def test_after_a_restart_a_watch_cannot_be_resumed_but_started_anew(tmp_path: Path) -> None:
    arguments = (*NO_SCAN, "--data-dir", str(tmp_path))
    with NamesrvProcess(*arguments) as namesrv, namesrv.connect() as client:
        register(client, "T1")
        with Watch(client, request("T1")) as watch:
            watch.next_changes()
        namesrv.terminate()
    with NamesrvProcess(*arguments) as namesrv, namesrv.connect() as client:
        error = client.stream_failure(WATCH, request("T1", after=last_bookmark([watch.stream])))
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "EPOCH_CHANGED")
        with Watch(client, request("T1")) as again:
            assert again.next_changes()["T1"].route == client.route("T1")
            check_promises([[watch.stream, again.stream]], [])


def test_a_revision_that_is_still_to_come_is_refused(client: Client) -> None:
    register(client, "T1")
    with Watch(client, request("T1")) as watch:
        watch.next_changes()
    epoch, revision = last_bookmark([watch.stream]) or ("", 0)
    error = client.stream_failure(WATCH, request("T1", after=(epoch, revision + 1)))
    assert (error.code, error.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_NOT_REACHED")


@pytest.mark.slow
def test_the_seven_promises_are_kept_while_brokers_come_and_go_and_connections_are_cut(
    namesrv: NamesrvProcess, client: Client
) -> None:
    rng = Random(20_261_121)
    topics = [f"T{number}" for number in range(6)]
    clients: list[list[WatchedStream]] = [[] for _ in range(3)]
    lookups: list[Lookup] = []

    def lookup() -> None:
        answer = client.routes.BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=topics), timeout=TIMEOUT)
        header = answer.header
        lookups.extend(Lookup(header.epoch, header.revision, row.topic, row.route) for row in answer.routes)
        lookups.extend(Lookup(header.epoch, header.revision, topic, None) for topic in answer.topics_not_found)

    for _ in range(8):
        with contextlib.ExitStack() as stack:
            watches = []
            for number, streams in enumerate(clients):
                connection = stack.enter_context(namesrv.connect())
                asked = request(*topics[number:], prefixes=["T"], after=last_bookmark(streams))
                watches.append(stack.enter_context(Watch(connection, asked)))
                streams.append(watches[-1].stream)
            for counter in range(6):
                port = 10911 + rng.randrange(4)
                chosen = rng.sample(topics, rng.randrange(1, 5))
                register(client, *chosen, name=f"broker-{port}", port=port, counter=rng.randrange(100))
                if counter % 3 == 0:
                    unregister(client, f"broker-{port}", port)
                lookup()
            register(client, *topics, name="broker-of-all", port=30911)
            unregister(client, "broker-of-all", 30911)  # every watch is told of this one
            lookup()
            for watch in watches[: rng.randrange(len(watches) + 1)]:  # the others are cut with changes on their way
                while (last_bookmark([watch.stream]) or ("", 0))[1] < lookups[-1].revision:
                    watch.next_message()
    assert len({lookup.revision for lookup in lookups}) > 20
    check_promises(clients, lookups)


@pytest.mark.own_server
@pytest.mark.slow
def test_what_the_change_log_has_dropped_cannot_be_resumed_from_but_started_anew(client: Client) -> None:
    register(client, "T1")
    with Watch(client, request("T1")) as watch:
        watch.next_changes()
    point = last_bookmark([watch.stream])
    assert point is not None
    broker = identity("127.0.0.1:20911", name="broker-b")
    for counter in range(MAX_CHANGE_ROWS // 20_000 + 1):
        large = registration((), broker, counter)
        large.topic_configs.extend(topic_config(f"T{number}", 1 + counter) for number in range(20_000))
        client.registration.RegisterBroker(large, timeout=TIMEOUT)
    follow = pb.StreamRouteSnapshotRequest(follow=True)
    follow.resume_after.epoch, follow.resume_after.revision = point
    for path, after in ((WATCH, request("T1", after=point)), (FOLLOW, follow)):
        error = client.stream_failure(path, after)
        assert (error.code, error.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED")
    with Watch(client, request("T1")) as again:
        assert again.next_changes()["T1"].route == client.route("T1")


def test_bad_requests_are_answered_with_the_field(client: Client) -> None:
    for bad, field in (
        (pb.WatchTopicRoutesRequest(), "topics"),
        (pb.WatchTopicRoutesRequest(topics=["T"], removed_topics=["T"]), "removed_topics"),
        (request("T1", ""), "topics[1]"),
        (request(prefixes=["a", "bad prefix"]), "topic_prefixes[1]"),
        (request("T1", zone="?"), "zone_name"),
        (request("T1", after=("", 1)), "resume_after.epoch"),
    ):
        error = client.stream_failure(WATCH, bad)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert error.metadata["field"] == field


def test_ten_thousand_topics_can_be_watched_by_name_and_not_one_more(client: Client) -> None:
    names = [f"a-topic-with-a-long-name-{number}" for number in range(limits.MAX_WATCH_TOPICS)]
    with Watch(client, request(*names)) as watch:
        assert watch.next_changes().keys() == set(names)
    error = client.stream_failure(WATCH, request(*names, "one-more"))
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")


@pytest.mark.own_server
def test_watchers_are_listed_in_pages_until_they_go(client: Client, namesrv: NamesrvProcess) -> None:
    register(client, "T1")

    def listed(size: int = 0, token: str = "") -> admin_service_pb2.ListWatchersResponse:
        return client.admin.ListWatchers(
            admin_service_pb2.ListWatchersRequest(page_size=size, page_token=token), timeout=TIMEOUT
        )

    with namesrv.connect() as other, Watch(other, request("T1", "T2", prefixes=["order-"])) as watch:
        watch.next_changes()
        with Watch(other, request("T1")) as second:
            second.next_changes()
            first_page = listed(1)
            (row,) = first_page.watchers
            assert (row.call, row.topic_count, list(row.topic_prefixes)) == ("WatchTopicRoutes", 2, ["order-"])
            assert (row.revision, row.events_behind) == (1, 0)
            assert "127.0.0.1" in row.peer
            assert [row.topic_count for row in listed(1, first_page.next_page_token).watchers] == [1]
            assert len(listed().watchers) == 2
    eventually(lambda: not listed().watchers)


def test_a_stalled_watch_is_cut_can_resume_and_holds_up_nobody() -> None:
    topics = [f"{number:06}-{'x' * 100}" for number in range(20_000)]
    with (
        # Longer than a watch that is read may pause on a busy machine.
        NamesrvProcess(*NO_SCAN, "--slow-reader-timeout-millis", "3000") as namesrv,
        namesrv.connect() as writer,
        namesrv.connect() as reader,
        namesrv.connect() as stalled,
    ):
        register(writer, "T1")
        call = stalled.routes.WatchTopicRoutes(iter([request(prefixes=[""])]), timeout=60)
        first = next(iter(call))
        with Watch(reader, request("T1")) as watch:
            watch.next_changes()
            counter = 1
            while not namesrv.events("slow_reader_cut"):
                counter += 1
                register(writer, *topics, counter=counter, name=f"broker-{counter % 2}", port=20911 + counter % 2)
                register(writer, "T1", name=f"broker-of-t1-{counter}", port=30000 + counter)
                while "T1" not in watch.next_changes():
                    pass  # a bookmark of its own, as registrations of others raise the revision meanwhile
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert RichError.of(caught.value).reason == "SLOW_READER"
        point = (first.header.epoch, first.header.revision)
        with Watch(reader, request(prefixes=[""], after=point)) as resumed:
            assert resumed.next_changes().keys() >= set(topics)
