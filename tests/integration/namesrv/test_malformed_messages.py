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
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0") as process:
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


def test_a_malformed_message_after_a_good_one_of_a_stream_is_refused(client: Client) -> None:
    error = error_of_streaming_requests(client, b"\x3a\x00", MALFORMED)
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT


def test_calls_of_malformed_messages_are_refused_and_leave_nothing(namesrv: NamesrvProcess, client: Client) -> None:
    errors = [client.failure(path, MALFORMED) for path in UNARY]
    errors += [client.stream_failure(path, MALFORMED) for path in STREAMS]
    errors.append(error_of_streaming_requests(client, MALFORMED))
    assert {(error.code, error.reason) for error in errors} == {(grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")}
    eventually(lambda: sample_of(namesrv, "namesrv_engine_calls_under_way") == 0)
    assert namesrv.events("handler_failed") == []
