"""Readers of streams that read, never read, stop or go: the others continue, and each is told why it is cut."""

from __future__ import annotations

import asyncio
import queue
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import client_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from structlog.testing import capture_logs

from broker_agent.errors import FAILURES
from namesrv_common.grpc_errors import RichError
from namesrv_common.server.rpc_handlers import CallHandlers
from tests.support.hostile.frames import INITIAL_WINDOW_SIZE, call, hello
from tests.support.partial_services import whole
from tests.support.programs.agents import Agent
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import fill, register
from tests.support.secured.fleet import Place, connected

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


def test_a_stalled_reader_that_loses_its_right_is_cut_and_told_why(place: Place) -> None:
    place.permit(broker={"register": ["DefaultCluster/*"]})
    with (
        NamesrvProcess(*place.flags("token")) as namesrv,
        connected(namesrv.endpoint, place.files("token", "broker")) as filler,
        connected(namesrv.endpoint, place.files("token", "client")) as reader,
    ):
        fill(filler)
        stream = reader.routes.StreamRouteSnapshot(pb.StreamRouteSnapshotRequest(), timeout=60)
        next(iter(stream))
        place.permit(client={"look_up": False})
        namesrv.wait_for("open_calls_ended")
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert RichError.of(caught.value).reason == "NOT_PERMITTED"


def unless_cut(client: Client) -> object:
    """Its broker's route, or that its connection was taken for dead, which a busy machine's may be at such pings."""
    try:
        return client.route()
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise
        return "cut"


def test_a_stopped_agent_is_noticed_by_its_unanswered_ping() -> None:
    with (
        NamesrvProcess(*NO_SCAN, "--keepalive-time-millis", "500") as namesrv,
        Agent(str(namesrv.endpoint)) as agent,
        namesrv.connect() as client,
    ):
        eventually(lambda: unless_cut(client), lambda seen: seen not in (None, "cut"))
        agent.signal(signal.SIGSTOP)
        eventually(lambda: unless_cut(client), lambda seen: seen is None)
        assert namesrv.wait_for("broker_removed")["reason"] == "CHANNEL_CLOSED"


ANSWER = bytes(100)
READERS = 20
"""Readers one after the other. Whether grpcio tells first of the failed write or of the lost connection is luck."""
METHOD = client_service_pb2.DESCRIPTOR.services_by_name["ClientService"].methods_by_name["OpenClientChannel"]


class Flood:
    """Answers one call with more than its reader takes."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[None] = asyncio.Queue()
        self.closed: asyncio.Queue[None] = asyncio.Queue()

    async def OpenClientChannel(self, _request: Any, _context: Any) -> AsyncIterator[bytes]:  # noqa: N802
        self.begun.put_nowait(None)
        try:
            while True:
                yield ANSWER
        finally:
            self.closed.put_nowait(None)


class Ended:
    """Observes how calls end."""

    def __init__(self) -> None:
        self.codes: asyncio.Queue[str] = asyncio.Queue()

    def of(self, _method: str, *, streams: bool) -> Ended:
        return self

    def started(self, _metadata: object) -> None:
        pass

    def ended(self, code: grpc.StatusCode, _started: None) -> None:
        self.codes.put_nowait(code.name)


async def test_a_reader_that_goes_within_a_stream_is_counted_and_no_defect() -> None:
    service, flood, ended = METHOD.containing_service, Flood(), Ended()
    server = grpc.aio.server()
    CallHandlers(FAILURES, 20.0, observers=(ended,)).add_service(server, service, whole(service, flood))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with capture_logs() as lines:
            for _ in range(READERS):
                async with asyncio.timeout(20):
                    with socket.create_connection(("127.0.0.1", port)) as reader:
                        reader.sendall(hello((INITIAL_WINDOW_SIZE, 0)) + call(f"/{service.full_name}/{METHOD.name}", 1))
                        await flood.begun.get()
                    await flood.closed.get()
                    assert await ended.codes.get() == "CANCELLED"
    finally:
        await server.stop(0)
    assert lines == []
