"""One greedy caller takes all it can of each kind; an honest pipeline, an operator and a lookup client continue.

All are on loopback, so their tokens say who is who.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
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
from tests.support.registrations import identity, registration
from tests.support.secured.fleet import digest

CALLERS = ("greedy", "pipeline", "operator", "agents")
SHARE_PERCENT = 1
"""Small, so that a share is soon taken."""
MORE_THAN_A_SHARE = 600
STREAMS_OF_A_CONNECTION = 150
"""Fewer than `MAX_CONCURRENT_STREAMS`: one more call of the connection must not wait."""
SLOW_READER_MILLIS = 3_000
TOPIC = "broker-0-topic-0"

Metadata = tuple[tuple[str, str], ...]
Take = Callable[[Client, Metadata], Any]


def as_caller(name: str) -> Metadata:
    """What a call carries that is made by a caller."""
    return (("authorization", f"Bearer token-of-{name}"),)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NamesrvProcess, str]]:
    """A name server whose callers have names, with routes, and where its metrics are."""
    rights: dict[str, dict[str, Any]] = {
        "greedy": {"look_up": True, "register": ["*/*"]},
        "pipeline": {"look_up": True},
        "operator": {"look_up": True, "administer": True},
        "agents": {"look_up": True, "register": ["*/*"]},
    }
    rows = {name: {"token_sha256": [digest(f"token-of-{name}")], **rights[name]} for name in CALLERS}
    path: Path = tmp_path_factory.mktemp("permits") / "permits.json"
    path.write_text(json.dumps({"principals": rows}))
    arguments = (
        *("--permits-file", str(path), "--metrics-listen", "127.0.0.1:0"),
        *("--caller-share-percent", str(SHARE_PERCENT), "--slow-reader-timeout-millis", str(SLOW_READER_MILLIS)),
        *("--scan-not-active-broker-interval-millis", "0"),
    )
    with NamesrvProcess(*arguments) as process:
        with process.connect() as client:
            for number in range(4):
                # Long names, so that a snapshot fills the buffers of a reader that stalls.
                topics = [f"broker-{number}-topic-{index}{'x' * 120 if index else ''}" for index in range(6_000)]
                request = registration(topics, identity(f"127.0.0.1:{11_000 + number}", name=f"broker-{number}"))
                client.registration.RegisterBroker(request, timeout=60, metadata=as_caller("agents"))
        yield process, str(process.wait_for("namesrv_started")["metrics"])


def pin(client: Client, metadata: Metadata) -> Any:
    request = pb.PinRouteSnapshotRequest(lease_millis=3_000)
    return client.routes.PinRouteSnapshot(request, timeout=TIMEOUT, metadata=metadata)


def stall_a_snapshot(client: Client, metadata: Metadata) -> Any:
    stream = client.routes.StreamRouteSnapshot(pb.StreamRouteSnapshotRequest(), timeout=60, metadata=metadata)
    next(iter(stream))
    return stream


def watch(client: Client, metadata: Metadata, *topics: str) -> Any:
    requests = iter([pb.WatchTopicRoutesRequest(topics=topics)])
    stream = client.routes.WatchTopicRoutes(requests, timeout=60, metadata=metadata)
    next(iter(stream))
    return stream


def watch_one(client: Client, metadata: Metadata) -> Any:
    return watch(client, metadata, TOPIC)


def watch_many(client: Client, metadata: Metadata) -> Any:
    return watch(client, metadata, *(f"wide-{number}" for number in range(3_000)))


def open_channel(client: Client, metadata: Metadata) -> Any:
    request = registration_service_pb2.OpenChannelRequest(holder="test")
    stream = client.registration.OpenChannel(request, timeout=60, metadata=metadata)
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


def others_go_on(client: Client, take: Take, honest: str) -> None:
    """An honest caller takes what the greedy one has too much of, somebody looks up, and an operator looks."""
    held = take(client, as_caller(honest))
    request = pb.GetTopicRouteRequest(topic=TOPIC)
    assert client.routes.GetTopicRoute(request, timeout=TIMEOUT, metadata=as_caller("pipeline")).HasField("route")
    listed = admin_service_pb2.ListWatchersRequest()
    client.admin.ListWatchers(listed, timeout=TIMEOUT, metadata=as_caller("operator"))
    if take is not pin:
        held.cancel()


@pytest.mark.parametrize(
    ("kind", "take", "share", "honest"),
    [
        ("pins", pin, 10, "pipeline"),
        ("snapshot_streams", stall_a_snapshot, 2, "pipeline"),
        ("watches", watch_one, 200, "pipeline"),
        ("watched_names", watch_many, 3, "pipeline"),
        ("channels", open_channel, 500, "agents"),
    ],
)
def test_what_one_caller_takes_all_of_is_there_for_others_and_comes_back(
    shared: tuple[NamesrvProcess, str], kind: str, take: Take, share: int, honest: str
) -> None:
    namesrv, metrics = shared
    with contextlib.ExitStack() as opened:
        other, *attackers = [opened.enter_context(namesrv.connect()) for _ in range(5)]
        taken, refusal = take_all(attackers, take)
        assert (len(taken), refusal.reason, refusal.metadata["caller"]) == (share, "LIMIT_EXCEEDED", "greedy")
        others_go_on(other, take, honest)
    eventually(lambda: samples(metrics)["namesrv_shares_used", kind], lambda used: used == 0, 30)
    assert samples(metrics)["namesrv_shares_refused_total", kind] > 0


def test_a_snapshot_that_is_not_read_gives_its_place_back_when_it_is_cut(shared: tuple[NamesrvProcess, str]) -> None:
    namesrv, metrics = shared
    with namesrv.connect() as attacker:
        taken, _ = take_all([attacker], stall_a_snapshot)
        eventually(lambda: samples(metrics)["namesrv_shares_used", "snapshot_streams"], lambda used: used == 0, 30)
        assert namesrv.wait_for("slow_reader_cut")["call"].endswith("StreamRouteSnapshot")
        for stream in taken:
            with pytest.raises(grpc.RpcError):
                list(stream)
