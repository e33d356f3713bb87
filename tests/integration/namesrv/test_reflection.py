"""Tools that have nothing but the address learn the contract from the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from namesrv.server.listener import SERVICES
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import registration

NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]


class Reflection:
    """A client of one version of reflection. The messages of both are the same bytes."""

    def __init__(self, connection: grpc.Channel, version: str) -> None:
        self.name = f"grpc.reflection.{version}.ServerReflection"
        self._call = connection.stream_stream(
            f"/{self.name}/ServerReflectionInfo",
            ServerReflectionRequest.SerializeToString,
            ServerReflectionResponse.FromString,
        )

    def ask(self, *requests: ServerReflectionRequest) -> list[ServerReflectionResponse]:
        """Asks over one stream."""
        return list(self._call(iter(requests), timeout=TIMEOUT))

    def files_with(self, symbol: str) -> dict[str, FileDescriptorProto]:
        """The file that defines a symbol, and those that it needs, by name; empty if there is none."""
        (answer,) = self.ask(ServerReflectionRequest(file_containing_symbol=symbol))
        assert answer.original_request.file_containing_symbol == symbol
        if answer.HasField("error_response"):
            assert answer.error_response.error_code == NOT_FOUND
            return {}
        return by_name(map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto))


def by_name(files: Iterable[FileDescriptorProto]) -> dict[str, FileDescriptorProto]:
    return {file.name: file for file in files}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A connection to a name server that has one broker."""
    with NamesrvProcess() as server, server.connect() as connected:
        connected.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        yield connected


@pytest.fixture(params=["v1", "v1alpha"])
def reflection(client: Client, request: pytest.FixtureRequest) -> Reflection:
    """Each version in turn."""
    return Reflection(client.connection, request.param)


def test_reflection_names_all_services_and_itself_under_both_names(reflection: Reflection) -> None:
    (answer,) = reflection.ask(ServerReflectionRequest(list_services=""))
    assert {service.name for service in answer.list_services_response.service} == {
        *(service.full_name for service in SERVICES),
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }


def test_every_call_of_every_service_is_found_by_its_name(reflection: Reflection) -> None:
    for service in SERVICES:
        symbols = [service.full_name, *(method.full_name for method in service.methods)]
        answers = reflection.ask(*(ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols))
        assert len(answers) == len(symbols)
        for symbol, answer in zip(symbols, answers, strict=True):
            files = by_name(map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto))
            assert service.file.name in files, symbol


def test_a_file_is_found_by_its_name(reflection: Reflection) -> None:
    names = ["namesrv_api/v1/route_service.proto", "grpc/reflection/v1/reflection.proto", "nothing.proto"]
    answers = reflection.ask(*(ServerReflectionRequest(file_by_filename=name) for name in names))
    assert [answer.error_response.error_code for answer in answers] == [0, 0, NOT_FOUND]


def test_a_call_is_made_with_nothing_but_what_reflection_says(client: Client, reflection: Reflection) -> None:
    pool = DescriptorPool()
    name = "namesrv_api.v1.RouteService.GetTopicRoute"
    waiting = reflection.files_with(name)
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
