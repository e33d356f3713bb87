"""What clients of gRPC do by themselves: their targets and retries, and services that they learn by reflection."""

from __future__ import annotations

import json
import time
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from namesrv.server.listener import SERVICES
from namesrv_common.grpc_errors import PUSHBACK_KEY, RichError
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess

POLICY = {
    "maxAttempts": 2,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.01s",
    "backoffMultiplier": 1,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
CONFIG = {"methodConfig": [{"name": [{"service": "namesrv_api.v1.RouteService"}], "retryPolicy": POLICY}]}


def test_a_retry_of_grpc_itself_waits_as_long_as_the_error_says() -> None:
    options = [("grpc.service_config", json.dumps(CONFIG))]
    with (
        NamesrvProcess("--warm-up-millis", "600000") as server,
        grpc.insecure_channel(str(server.endpoint), options) as channel,
    ):
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            RouteServiceStub(channel).GetTopicRoute(pb.GetTopicRouteRequest(topic="T"), timeout=TIMEOUT)
        elapsed = time.monotonic() - began
    error = RichError.of(caught.value)
    assert (error.reason, error.retry_after_seconds) == ("REGISTRY_WARMING", 0.2)
    trailers: Any = caught.value.trailing_metadata()
    assert dict(trailers)[PUSHBACK_KEY] == "200"
    assert elapsed >= 0.2


NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]


def ask(client: Client, version: str, *requests: ServerReflectionRequest) -> list[ServerReflectionResponse]:
    """Asks over one stream of a version of reflection. The messages of both are the same bytes."""
    call = client.connection.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        ServerReflectionRequest.SerializeToString,
        ServerReflectionResponse.FromString,
    )
    return list(call(iter(requests), timeout=TIMEOUT))


def files_of(answer: ServerReflectionResponse) -> dict[str, FileDescriptorProto]:
    """The file that was asked for, and those that it needs, by name."""
    files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
    return {file.name: file for file in files}


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_services_calls_and_files_are_found_by_their_names(client: Client, version: str) -> None:
    (listed,) = ask(client, version, ServerReflectionRequest(list_services=""))
    assert {service.name for service in listed.list_services_response.service} == {
        *(service.full_name for service in SERVICES),
        "grpc.health.v1.Health",
    }
    file_of = {
        name: of.file.name for of in SERVICES for name in (of.full_name, *(method.full_name for method in of.methods))
    }
    answers = ask(client, version, *(ServerReflectionRequest(file_containing_symbol=symbol) for symbol in file_of))
    for (symbol, file), answer in zip(file_of.items(), answers, strict=True):
        assert file in files_of(answer), symbol
        assert answer.original_request.file_containing_symbol == symbol
    names = ["namesrv_api/v1/route_service.proto", "nothing.proto"]
    answers = ask(client, version, *(ServerReflectionRequest(file_by_filename=name) for name in names))
    assert [answer.error_response.error_code for answer in answers] == [0, NOT_FOUND]
    (missing,) = ask(client, version, ServerReflectionRequest(file_containing_symbol="nothing"))
    assert missing.error_response.error_code == NOT_FOUND
