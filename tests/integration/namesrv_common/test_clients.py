"""The client of name servers for threads, over real gRPC: answers, pages, streams, and each kind of failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client import namesrv_client
from namesrv_common.client.channels import MAX_ANSWER_BYTES, ConnectionSettings
from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.client.response_limits import ResponseLimits
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.patience import TIMEOUT

REFUSAL = RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many", "LIMIT_EXCEEDED", "namesrv")
PAGES = [["T1", "T2"], ["T3"], []]
ENDLESS = 1_000
"""Page size that asks the fake for a list without end."""


class Fake(ScriptedNamesrv):
    """Answers in a way that the request chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()
        """Set when an endless stream has lost its reader."""
        self.pages_sent = 0
        """Pages of an endless list that were asked for."""

    def GetNamesrvConfig(self, *_: object) -> bytes:  # noqa: N802
        return b"\xff"

    def GetKvConfig(self, _request: Message, context: grpc.ServicerContext) -> bytes:  # noqa: N802
        """One byte more than clients accept, compressed to a few KiB."""
        context.set_compression(grpc.Compression.Gzip)
        return bytes(MAX_ANSWER_BYTES + 1)

    def GetTopicRoute(  # noqa: N802
        self, request: pb.GetTopicRouteRequest, context: grpc.ServicerContext
    ) -> pb.GetTopicRouteResponse:
        if request.topic == "late":
            self.ended.wait(TIMEOUT)
        if request.topic == "cancelled":
            context.abort(grpc.StatusCode.CANCELLED, "by the server")
        context.abort_with_status(REFUSAL.status())

    def ListTopics(self, request: pb.ListTopicsRequest, context: grpc.ServicerContext) -> pb.ListTopicsResponse:  # noqa: N802
        number = int(request.page_token or "0")
        if request.page_size == ENDLESS:
            self.pages_sent += 1
            return pb.ListTopicsResponse(topics=PAGES[0], next_page_token=str(number + 1))
        following = str(number + 1) if number + 1 < len(PAGES) else ""
        return pb.ListTopicsResponse(topics=PAGES[number], next_page_token=following)

    def StreamRouteSnapshot(  # noqa: N802
        self, request: pb.StreamRouteSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.StreamRouteSnapshotResponse]:
        if request.follow or request.pin_id == "endless":
            context.add_callback(self.ended.set)
        yield pb.StreamRouteSnapshotResponse(snapshot_header=pb.SnapshotHeader(taken_at_millis=7))
        if request.follow:
            self.ended.wait(TIMEOUT)
        elif request.pin_id == "endless":
            while not self.ended.is_set():
                yield pb.StreamRouteSnapshotResponse(chunk=pb.SnapshotChunk(topics=[pb.TopicQueues()] * 100))
        elif request.pin_id:
            context.abort(grpc.StatusCode.INTERNAL, "broke off")
        yield pb.StreamRouteSnapshotResponse(snapshot_end=pb.SnapshotEnd())


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as server:
        yield server
        server.ended.set()


@pytest.fixture
def endpoint(fake: Fake) -> Endpoint:
    return fake.endpoint


Ask = Callable[[Message], list[Message]]
"""Makes the call of a request, of any kind."""


@pytest.fixture
def ask(endpoint: Endpoint) -> Ask:
    """Answers of a call or a stream; of a list, all pages."""

    def answers(message: Message) -> list[Message]:
        with NamesrvClient(endpoint, 0.5 if getattr(message, "topic", "") == "late" else TIMEOUT) as client:
            if isinstance(message, pb.StreamRouteSnapshotRequest):
                return [*client.stream(client.route.StreamRouteSnapshot, message, TIMEOUT)]
            if isinstance(message, pb.ListTopicsRequest):
                return [*client.pages(client.route.ListTopics, message)]
            stub: object = client.admin if message.DESCRIPTOR.file == admin_service_pb2.DESCRIPTOR else client.route
            return [getattr(stub, message.DESCRIPTOR.name.removesuffix("Request"))(message)]

    return answers


def failure(ask: Ask, message: Message) -> CallError:
    with pytest.raises(CallError) as caught:
        ask(message)
    return caught.value


def test_all_pages_of_a_list_come_in_order_and_the_last_one_ends_it(ask: Ask) -> None:
    found = ask(pb.ListTopicsRequest())
    assert [list(page.topics) for page in found if isinstance(page, pb.ListTopicsResponse)] == PAGES


def test_a_refusal_has_the_endpoint_and_all_that_the_name_server_said(ask: Ask, endpoint: Endpoint) -> None:
    error = failure(ask, pb.GetTopicRouteRequest(topic="T"))
    assert (error.endpoint, error.error) == (endpoint, REFUSAL)
    assert str(error) == f"{endpoint}: LIMIT_EXCEEDED: too many"
    assert not error.unreachable


@pytest.mark.parametrize(
    ("message", "code", "text", "unreachable"),
    [
        (pb.GetTopicRouteRequest(topic="late"), grpc.StatusCode.DEADLINE_EXCEEDED, "", True),
        (pb.GetTopicRouteRequest(topic="cancelled"), grpc.StatusCode.CANCELLED, "by the server", True),
        (admin_service_pb2.GetNamesrvConfigRequest(), grpc.StatusCode.INTERNAL, "", True),
        (admin_service_pb2.GetKvConfigRequest(), grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max", False),
        (pb.StreamRouteSnapshotRequest(pin_id="p"), grpc.StatusCode.INTERNAL, "broke off", True),
    ],
    ids=["late", "cancelled", "no message", "too large once it is unpacked", "a stream that breaks off"],
)
def test_an_answer_that_is_none_is_a_failure(
    ask: Ask, message: Message, code: grpc.StatusCode, text: str, unreachable: bool
) -> None:
    error = failure(ask, message)
    assert (error.error.code, error.unreachable) == (code, unreachable)
    assert text in error.error.message


def test_a_stream_without_end_is_given_up_at_its_limit(ask: Ask, fake: Fake, endpoint: Endpoint) -> None:
    with mock.patch.object(namesrv_client, "STREAM_LIMITS", ResponseLimits(bytes=1 << 20, rows=1_000, seconds=TIMEOUT)):
        error = failure(ask, pb.StreamRouteSnapshotRequest(pin_id="endless"))
    problem = "sends too much: StreamRouteSnapshot has 1,100 rows so far, over the limit of 1,000"
    assert str(error) == f"{endpoint}: INTERNAL: {problem}"
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
    ask: Ask, fake: Fake, limit: str, most: Any, problem: str, pages: int
) -> None:
    with mock.patch.object(namesrv_client, limit, most):
        error = failure(ask, pb.ListTopicsRequest(page_size=ENDLESS))
    assert error.error.message.startswith(f"sends too much: {problem} so far, over the limit of ")
    assert fake.pages_sent == pages


def test_a_stream_that_is_closed_ends_at_the_server(fake: Fake, endpoint: Endpoint) -> None:
    follow = pb.StreamRouteSnapshotRequest(follow=True)
    with (
        NamesrvClient(endpoint, TIMEOUT) as client,
        closing(client.stream(client.route.StreamRouteSnapshot, follow, None)) as messages,
    ):
        next(messages)
    assert fake.ended.wait(TIMEOUT)


def test_a_call_after_the_close_is_a_defect_and_no_answer(endpoint: Endpoint) -> None:
    client = NamesrvClient(endpoint, TIMEOUT)
    client.close()
    with pytest.raises(ValueError, match="closed channel"):
        client.route.GetNamesrvStatus(pb.GetNamesrvStatusRequest())


def test_settings_become_options_in_grpcs_units() -> None:
    settings = ConnectionSettings(
        connect_seconds=3.0,
        first_backoff_seconds=0.1,
        longest_backoff_seconds=1.0,
        keepalive_seconds=5.0,
        shared=False,
        service_config="{}",
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
        "grpc.service_config": "{}",
    }
