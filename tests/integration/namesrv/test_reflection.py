"""Tools that have nothing but the address learn the contract from the server."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from namesrv.server.listener import SERVICES
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client
from tests.support.registrations import registration

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
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    file_of = {
        name: of.file.name for of in SERVICES for name in (of.full_name, *(method.full_name for method in of.methods))
    }
    answers = ask(client, version, *(ServerReflectionRequest(file_containing_symbol=symbol) for symbol in file_of))
    for (symbol, file), answer in zip(file_of.items(), answers, strict=True):
        assert file in files_of(answer), symbol
        assert answer.original_request.file_containing_symbol == symbol
    names = ["namesrv_api/v1/route_service.proto", "grpc/reflection/v1/reflection.proto", "nothing.proto"]
    answers = ask(client, version, *(ServerReflectionRequest(file_by_filename=name) for name in names))
    assert [answer.error_response.error_code for answer in answers] == [0, 0, NOT_FOUND]
    (missing,) = ask(client, version, ServerReflectionRequest(file_containing_symbol="nothing"))
    assert missing.error_response.error_code == NOT_FOUND


def test_a_call_is_made_with_nothing_but_what_reflection_says(client: Client) -> None:
    client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
    pool = DescriptorPool()
    name = "namesrv_api.v1.RouteService.GetTopicRoute"
    (answer,) = ask(client, "v1", ServerReflectionRequest(file_containing_symbol=name))
    waiting = files_of(answer)
    while waiting:
        for file in list(waiting.values()):
            if not waiting.keys() & set(file.dependency):
                pool.Add(waiting.pop(file.name))
    method = pool.FindMethodByName(name)
    request: Any = GetMessageClass(method.input_type)(topic="TopicTest")
    answer_class: Any = GetMessageClass(method.output_type)
    call = client.connection.unary_unary(
        "/namesrv_api.v1.RouteService/GetTopicRoute", request.__class__.SerializeToString, answer_class.FromString
    )
    route = call(request, timeout=TIMEOUT).route
    assert [queues.broker_name for queues in route.queue_datas] == ["broker-a"]
