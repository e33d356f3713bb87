"""The client of name servers for threads, over real gRPC: no answer, too large a one, and one without end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from unittest import mock

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.admin_service_pb2 import GetKvConfigRequest

from namesrv_common.client import namesrv_client
from namesrv_common.client.channels import MAX_ANSWER_BYTES, ConnectionSettings, ResponseLimits
from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.grpc_errors import CallError
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.patience import TIMEOUT


class Fake(ScriptedNamesrv):
    """Sends more than a client accepts, or breaks off."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()
        """Set when a stream has lost its reader."""

    def GetKvConfig(self, _request: Message, context: grpc.ServicerContext) -> bytes:  # noqa: N802
        """One byte more than clients accept, compressed to a few KiB."""
        context.set_compression(grpc.Compression.Gzip)
        return bytes(MAX_ANSWER_BYTES + 1)

    def ListTopics(self, *_: object) -> pb.ListTopicsResponse:  # noqa: N802
        return pb.ListTopicsResponse(topics=["T1", "T2"], next_page_token="another")

    def StreamRouteSnapshot(  # noqa: N802
        self, request: pb.StreamRouteSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.StreamRouteSnapshotResponse]:
        context.add_callback(self.ended.set)
        yield pb.StreamRouteSnapshotResponse(snapshot_header=pb.SnapshotHeader(taken_at_millis=7))
        if request.pin_id == "broken":
            context.abort(grpc.StatusCode.INTERNAL, "broke off")
        while not self.ended.is_set():
            topics = [pb.TopicQueues(queue_datas=[route_data_pb2.QueueData()] * 3)] * 90  # each is one row
            clusters = [route_data_pb2.ClusterData(cluster_name="c")] * 10
            yield pb.StreamRouteSnapshotResponse(chunk=pb.SnapshotChunk(topics=topics, clusters=clusters))


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as server:
        yield server
        server.ended.set()


@pytest.fixture
def client(fake: Fake) -> Iterator[NamesrvClient]:
    with NamesrvClient(fake.endpoint, TIMEOUT) as connected:
        yield connected


def failure(call: Callable[[], object]) -> CallError:
    with pytest.raises(CallError) as caught:
        call()
    return caught.value


def snapshot(client: NamesrvClient, pin_id: str = "") -> list[pb.StreamRouteSnapshotResponse]:
    request = pb.StreamRouteSnapshotRequest(pin_id=pin_id)
    return list(client.stream(client.route.StreamRouteSnapshot, request, 3 * TIMEOUT))  # longer than the test waits


def test_a_call_without_an_answer_ends_at_the_clients_timeout(fake: Fake) -> None:
    fake.hang()
    with NamesrvClient(fake.endpoint, 0.5) as client:
        error = failure(lambda: client.route.ListTopics(pb.ListTopicsRequest()))
    assert (error.endpoint, error.error.code) == (fake.endpoint, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert error.unreachable


def test_an_answer_that_is_too_large_once_it_is_unpacked_is_refused(client: NamesrvClient) -> None:
    error = failure(lambda: client.admin.GetKvConfig(GetKvConfigRequest()))
    assert error.error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not error.unreachable


def test_a_stream_that_breaks_off_is_a_failure_and_a_call_after_the_close_a_defect(client: NamesrvClient) -> None:
    assert str(failure(lambda: snapshot(client, "broken"))) == f"{client.endpoint}: INTERNAL: broke off"
    client.close()
    with pytest.raises(ValueError, match="closed channel"):
        client.route.ListTopics(pb.ListTopicsRequest())


def test_a_stream_without_end_is_given_up_at_its_limit(client: NamesrvClient, fake: Fake) -> None:
    with mock.patch.object(namesrv_client, "STREAM_LIMITS", ResponseLimits(bytes=1 << 20, rows=1_000, seconds=TIMEOUT)):
        error = failure(lambda: snapshot(client))
    problem = "sends too much: StreamRouteSnapshot has 1,100 rows so far, over the limit of 1,000"
    assert str(error) == f"{fake.endpoint}: INTERNAL: {problem}"
    assert error.unreachable
    assert fake.ended.wait(TIMEOUT)


@pytest.mark.parametrize(
    ("limit", "most", "problem", "pages"),
    [
        ("LIST_LIMITS", ResponseLimits(bytes=1 << 20, rows=10, seconds=TIMEOUT), "ListTopics has 12 rows", 6),
        ("MAX_PAGES", 3, "4 pages of ListTopics", 4),
    ],
)
def test_a_list_without_end_is_given_up_at_its_limit(
    client: NamesrvClient, fake: Fake, limit: str, most: Any, problem: str, pages: int
) -> None:
    with mock.patch.object(namesrv_client, limit, most):
        error = failure(lambda: list(client.items(client.route.ListTopics, pb.ListTopicsRequest(), "topics")))
    assert error.error.message.startswith(f"sends too much: {problem} so far, over the limit of ")
    assert len(fake.asked["ListTopics"]) == pages


def test_lists_of_one_request_are_read_each_from_its_beginning(client: NamesrvClient, fake: Fake) -> None:
    request = pb.ListTopicsRequest()
    first, other = (client.items(client.route.ListTopics, request, "topics") for _ in range(2))
    assert [*islice(first, 3), *islice(other, 1)] == ["T1", "T2", "T1", "T1"]
    assert [asked.page_token for asked in fake.asked["ListTopics"]] == ["", "another", ""]


def test_settings_become_options_in_grpcs_units() -> None:
    settings = ConnectionSettings(
        connect_seconds=3.0, first_backoff_seconds=0.1, longest_backoff_seconds=1.0, keepalive_seconds=5.0, shared=False
    )
    assert dict(settings.options) == {
        "grpc.min_reconnect_backoff_ms": 3_000,
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 1_000,
        "grpc.keepalive_time_ms": 5_000,
        "grpc.keepalive_timeout_ms": 5_000,
        "grpc.http2.ping_timeout_ms": 5_000,
        "grpc.http2.max_pings_without_data": 0,
        "grpc.use_local_subchannel_pool": 1,
        "grpc.enable_retries": 0,
    }
    assert ("grpc.service_config", "{}") in ConnectionSettings(service_config="{}").options
