"""Readers of streams that read, never read, stop or go: the others continue, and each is told why it is cut."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.grpc_errors import RichError
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import register

NO_SCAN = ("--scan-not-active-broker-interval-millis", "0")
Watch = Iterator[pb.WatchTopicRoutesResponse]


def request(*topics: str, **fields: Any) -> pb.WatchTopicRoutesRequest:
    return pb.WatchTopicRoutesRequest(topics=topics, **fields)


def changes_of(watch: Watch) -> dict[str, pb.TopicRouteChange]:
    """The changes up to the next bookmark, by topic."""
    changes: dict[str, pb.TopicRouteChange] = {}
    for message in watch:
        changes |= {change.topic: change for change in message.changes}
        if message.bookmark:
            return changes
    raise AssertionError("the stream ended")


def test_a_watch_changes_while_it_is_open_and_outlives_its_last_request(client: Client) -> None:
    register(client, "T1", "T2")
    requests: queue.SimpleQueue[pb.WatchTopicRoutesRequest | None] = queue.SimpleQueue()
    requests.put(request("T1"))
    watch: Any = client.routes.WatchTopicRoutes(iter(requests.get, None), timeout=60)
    assert changes_of(watch).keys() == {"T1"}
    requests.put(request("T2"))
    assert changes_of(watch)["T2"].route == client.route("T2")
    requests.put(None)
    register(client, "T1", name="broker-b", port=20911)
    assert changes_of(watch).keys() == {"T1"}
    watch.cancel()


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
        unread = stalled.routes.WatchTopicRoutes(iter([request(topic_prefixes=[""])]), timeout=60)
        first = next(iter(unread))
        watch: Any = reader.routes.WatchTopicRoutes(iter([request("T1")]), timeout=60)
        changes_of(watch)
        for counter in range(2, 7):  # more than the stalled connection's buffers take
            register(writer, *topics, counter=counter, name=f"broker-{counter % 2}", port=20911 + counter % 2)
            register(writer, "T1", name=f"broker-of-t1-{counter}", port=30000 + counter)
            while "T1" not in changes_of(watch):
                pass  # a bookmark of its own, as registrations of others raise the revision in the meantime
        namesrv.wait_for("slow_reader_cut")
        watch.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            list(unread)
        assert RichError.of(caught.value).reason == "SLOW_READER"
        point = pb.ResumePoint(epoch=first.header.epoch, revision=first.header.revision)
        again = request(topic_prefixes=[""], resume_after=point)
        resumed: Any = reader.routes.WatchTopicRoutes(iter([again]), timeout=60)
        assert changes_of(resumed).keys() >= set(topics)
        resumed.cancel()
