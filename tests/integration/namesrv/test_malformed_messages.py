"""A message that cannot be parsed ends its call, on every service, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from groundwork.grpc_errors import RichError
from tests.support.metrics_page import sample_of
from tests.support.programs.processes import Client, NamesrvProcess, eventually

UNARY = ("/grpc.health.v1.Health/Check", "/namesrv_api.v1.RouteService/GetTopicRoute")
STREAMS = ("/grpc.health.v1.Health/Watch", "/namesrv_api.v1.RouteService/WatchTopicRoutes")
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
MALFORMED = b"\xff\xff\xff"
SECONDS = 20.0


@pytest.fixture(scope="module")
def namesrv() -> Iterator[NamesrvProcess]:
    with NamesrvProcess() as process:
        yield process


@pytest.fixture
def client(namesrv: NamesrvProcess) -> Iterator[Client]:
    with namesrv.connect() as connected:
        yield connected


def error_of_streaming_requests(client: Client, *requests: bytes) -> RichError:
    call = client.connection.stream_stream(REFLECTION, None, None)
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter(requests), timeout=SECONDS))
    return RichError.of(caught.value)


@pytest.mark.parametrize("before", [(), (b"\x3a\x00",)], ids=["first", "second"])
def test_a_malformed_message_of_a_stream_of_requests_is_refused(client: Client, before: tuple[bytes, ...]) -> None:
    error = error_of_streaming_requests(client, *before, MALFORMED)
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT


def test_calls_of_malformed_messages_leave_nothing_behind() -> None:
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0") as namesrv:
        with namesrv.connect() as client:
            for path in UNARY:
                assert client.failure(path, MALFORMED).reason == "MALFORMED_REQUEST"
            for path in STREAMS:
                assert client.stream_failure(path, MALFORMED).reason == "MALFORMED_REQUEST"
            assert error_of_streaming_requests(client, MALFORMED).reason == "MALFORMED_REQUEST"
            eventually(lambda: sample_of(namesrv, "namesrv_engine_calls_under_way") == 0)
        assert namesrv.events("handler_failed") == []
