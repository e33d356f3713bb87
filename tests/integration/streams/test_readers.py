"""Readers of streams that follow, stop or go, and one that takes all it can: the others continue."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.grpc_errors import RichError
from tests.support.metrics_page import samples
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, register, registration
from tests.support.routes.route_rows import RouteRows
from tests.support.secured.fleet import digest

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
    watch: Any = client.routes.WatchTopicRoutes(iter(requests.get, None), timeout=3 * TIMEOUT)
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
        unread = stalled.routes.WatchTopicRoutes(iter([request(topic_prefixes=[""])]), timeout=3 * TIMEOUT)
        first = next(iter(unread))
        watch: Any = reader.routes.WatchTopicRoutes(iter([request("T1")]), timeout=3 * TIMEOUT)
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
        resumed: Any = reader.routes.WatchTopicRoutes(iter([again]), timeout=3 * TIMEOUT)
        assert changes_of(resumed).keys() >= set(topics)
        resumed.cancel()


@contextmanager
def following(client: Client, **fields: Any) -> Iterator[Iterator[pb.StreamRouteSnapshotResponse]]:
    """A followed snapshot; its messages wait for the next one."""
    call: Any = client.routes.StreamRouteSnapshot(
        pb.StreamRouteSnapshotRequest(follow=True, **fields), timeout=3 * TIMEOUT
    )
    yield iter(call)
    call.cancel()


def take(rows: RouteRows, stream: Iterator[pb.StreamRouteSnapshotResponse], revision: int) -> None:
    """Takes changes in up to the bookmark of a revision."""
    for message in stream:
        assert message.HasField("changes")
        rows.take(message)
        if not message.changes.changes and message.header.revision >= revision:
            return
    raise AssertionError("the stream ended")


def test_a_follower_resumes_without_the_snapshot_or_from_a_pinned_one(client: Client) -> None:
    register(client, "T1")
    before = client.snapshot()
    resumed, header = RouteRows.of_snapshot(before), before[0].header
    pin = client.routes.PinRouteSnapshot(pb.PinRouteSnapshotRequest(), timeout=TIMEOUT)
    reached = register(client, "T2", name="broker-b", port=20911).header.revision
    with following(client, resume_after=pb.ResumePoint(epoch=header.epoch, revision=header.revision)) as stream:
        take(resumed, stream, reached)
        reached = register(client, "T3", name="broker-b", port=20911, counter=2).header.revision
        take(resumed, stream, reached)
    with following(client, pin_id=pin.pin_id) as stream:
        pinned = RouteRows.of_snapshot(takewhile(lambda message: not message.HasField("snapshot_end"), stream))
        assert {key[0] for key in pinned.queues} == {"T1"}
        take(pinned, stream, reached)
    assert resumed == pinned == RouteRows.of_snapshot(client.snapshot())


SHARE_PERCENT = 1
"""Small, so that a share is soon taken."""
MORE_THAN_A_SHARE = 600
STREAMS_OF_A_CONNECTION = 150
"""Fewer than `MAX_CONCURRENT_STREAMS`: one more call of the connection must not wait."""
TOPIC = "broker-0-topic-0"

Metadata = tuple[tuple[str, str], ...]
Take = Callable[[Client, Metadata], Any]


def as_caller(name: str) -> Metadata:
    """The metadata of a caller's calls. Both callers are on loopback, so their tokens tell them apart."""
    return (("authorization", f"Bearer token-of-{name}"),)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NamesrvProcess, str]]:
    """A name server whose callers have names, with routes, and where its metrics are."""
    rights = {"look_up": True, "register": ["*/*"], "administer": True}
    rows = {name: {"token_sha256": [digest(f"token-of-{name}")], **rights} for name in ("greedy", "honest")}
    path: Path = tmp_path_factory.mktemp("permits") / "permits.json"
    path.write_text(json.dumps({"principals": rows}))
    arguments = (
        *("--permits-file", str(path), "--metrics-listen", "127.0.0.1:0"),
        *("--caller-share-percent", str(SHARE_PERCENT), "--slow-reader-timeout-millis", "3000", *NO_SCAN),
    )
    with NamesrvProcess(*arguments) as process:
        with process.connect() as client:
            for number in range(4):
                # Long names, so that a snapshot fills the buffers of a reader that stalls.
                topics = [f"broker-{number}-topic-{index}{'x' * 120 if index else ''}" for index in range(6_000)]
                request = registration(topics, identity(f"127.0.0.1:{11_000 + number}", name=f"broker-{number}"))
                client.registration.RegisterBroker(request, timeout=3 * TIMEOUT, metadata=as_caller("honest"))
        yield process, str(process.wait_for("namesrv_started")["metrics"])


def pin(client: Client, metadata: Metadata) -> Any:
    request = pb.PinRouteSnapshotRequest(lease_millis=3_000)
    return client.routes.PinRouteSnapshot(request, timeout=TIMEOUT, metadata=metadata)


def stall_a_snapshot(client: Client, metadata: Metadata) -> Any:
    stream = client.routes.StreamRouteSnapshot(pb.StreamRouteSnapshotRequest(), timeout=3 * TIMEOUT, metadata=metadata)
    next(iter(stream))
    return stream


def watch(client: Client, metadata: Metadata, topics: Sequence[str] = (TOPIC,)) -> Any:
    stream = client.routes.WatchTopicRoutes(iter([request(*topics)]), timeout=3 * TIMEOUT, metadata=metadata)
    next(iter(stream))
    return stream


def open_channel(client: Client, metadata: Metadata) -> Any:
    request = registration_service_pb2.OpenChannelRequest(holder="test")
    stream = client.registration.OpenChannel(request, timeout=3 * TIMEOUT, metadata=metadata)
    next(iter(stream))
    return stream


def take_all(clients: Sequence[Client], take: Take) -> tuple[list[Any], RichError]:
    """Takes one after the other until it is refused, over as many connections as the streams need."""
    taken: list[Any] = []
    while len(taken) < MORE_THAN_A_SHARE:
        try:
            taken.append(take(clients[len(taken) // STREAMS_OF_A_CONNECTION], as_caller("greedy")))
        except grpc.RpcError as error:
            return taken, RichError.of(error)
    raise AssertionError("it was never refused")


def others_go_on(client: Client, take: Take) -> None:
    """An honest caller takes what the greedy one has too much of, looks up, and looks as an operator does."""
    honest = as_caller("honest")
    held = take(client, honest)
    request = pb.GetTopicRouteRequest(topic=TOPIC)
    assert client.routes.GetTopicRoute(request, timeout=TIMEOUT, metadata=honest).HasField("route")
    client.admin.ListWatchers(admin_service_pb2.ListWatchersRequest(), timeout=TIMEOUT, metadata=honest)
    if take is not pin:
        held.cancel()


@pytest.mark.parametrize(
    ("kind", "take", "share"),
    [
        ("pins", pin, 10),
        ("snapshot_streams", stall_a_snapshot, 2),
        ("watches", watch, 200),
        ("watched_names", partial(watch, topics=[f"wide-{number}" for number in range(3_000)]), 3),
        ("channels", open_channel, 500),
    ],
)
def test_what_one_caller_takes_all_of_is_there_for_others_and_comes_back(
    shared: tuple[NamesrvProcess, str], kind: str, take: Take, share: int
) -> None:
    namesrv, metrics = shared
    with ExitStack() as opened:
        other, *attackers = [opened.enter_context(namesrv.connect()) for _ in range(5)]
        taken, refusal = take_all(attackers, take)
        assert (len(taken), refusal.reason, refusal.metadata["caller"]) == (share, "LIMIT_EXCEEDED", "greedy")
        others_go_on(other, take)
    eventually(lambda: samples(metrics)["namesrv_shares_used", kind], lambda used: used == 0, 30)
    assert samples(metrics)["namesrv_shares_refused_total", kind] > 0
