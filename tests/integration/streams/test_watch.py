"""WatchTopicRoutes over the wire."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import RichError
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import register
from tests.support.routes.watch_validators import WatchedStream, check_promises, last_bookmark

WATCH = "/namesrv_api.v1.RouteService/WatchTopicRoutes"
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


def test_a_watch_goes_on_when_its_client_sends_nothing_more(client: Client) -> None:
    register(client, "T1")
    with Watch(client, request("T1")) as watch:
        watch.half_close()
        watch.next_changes()
        register(client, "T1", name="broker-b", port=20911)
        assert watch.next_changes().keys() == {"T1"}


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
