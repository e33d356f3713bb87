"""Services that clients of gRPC learn by reflection, and limits that the engine keeps."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.core.tables import varint
from namesrv.limits import MAX_MESSAGE_BYTES, MAX_REGISTRATION_BYTES
from namesrv.server.server import SERVICES
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client
from tests.support.registrations import identity, registration

NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]


def ask(client: Client, version: str, *requests: ServerReflectionRequest) -> list[ServerReflectionResponse]:
    """Asks over one stream of a version of reflection. The messages of both are the same bytes."""
    call = client.connection.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        ServerReflectionRequest.SerializeToString,
        ServerReflectionResponse.FromString,
    )
    return list(call(iter(requests), timeout=TIMEOUT))


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
        files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
        assert file in {one.name for one in files}, symbol
        assert answer.original_request.file_containing_symbol == symbol
    names = ["namesrv_api/v1/route_service.proto", "nothing.proto"]
    answers = ask(client, version, *(ServerReflectionRequest(file_by_filename=name) for name in names))
    assert [answer.error_response.error_code for answer in answers] == [0, NOT_FOUND]
    (missing,) = ask(client, version, ServerReflectionRequest(file_containing_symbol="nothing"))
    assert missing.error_response.error_code == NOT_FOUND


REGISTER_BROKER = "/namesrv_api.v1.RegistrationService/RegisterBroker"
HEARTBEAT = "/namesrv_api.v1.RegistrationService/BrokerHeartbeat"

UNKNOWN_TAG = b"\x82\x7d"
"""Field 2,000, length-delimited: what readers of a message pass over."""


def padded(request: Message, size: int) -> bytes:
    """The encoding of a request, filled up to a size by a field that nobody knows, again and again."""
    encoded = request.SerializeToString()
    while left := size - len(encoded):
        length = min(left, 1_000_000) - len(UNKNOWN_TAG) - 3  # three bytes tell a length of 16 KiB to 2 MiB
        encoded += UNKNOWN_TAG + varint(length) + bytes(length)
    return encoded


@pytest.mark.parametrize(
    ("path", "message", "limit"),
    [
        (REGISTER_BROKER, registration(["Large"], counter=2), MAX_REGISTRATION_BYTES),
        (HEARTBEAT, pb.BrokerHeartbeatRequest(broker=identity()), MAX_MESSAGE_BYTES),
        ("/grpc.health.v1.Health/Check", HealthCheckRequest(), MAX_MESSAGE_BYTES),
    ],
)
def test_a_request_may_have_so_many_bytes_and_not_one_more(
    client: Client, path: str, message: Message, limit: int
) -> None:
    client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
    error = client.failure(path, padded(message, limit + 1))
    assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"{limit + 1} vs. {limit}" in error.message
    assert client.route("Large") is None
    client.connection.unary_unary(path, None, None)(padded(message, limit), timeout=TIMEOUT)
    assert (client.route("Large") is not None) == (path == REGISTER_BROKER)


def test_a_registration_of_10000_topics_arrives_compressed(client: Client) -> None:
    """Scenario 68."""
    sent = [f"topic-{number:05}" for number in range(10_000)]
    client.registration.RegisterBroker(registration(sent), timeout=TIMEOUT, compression=grpc.Compression.Gzip)
    messages = client.snapshot()
    assert len(messages) > 4, "header, chunks of a few hundred kB at most, end"
    assert max(message.ByteSize() for message in messages) < 300_000
    rows = [row for message in messages for row in message.chunk.topics]
    assert sorted(row.topic for row in rows) == sent
    queues = [queue for row in rows for queue in row.queue_datas]
    assert {(queue.read_queue_nums, queue.write_queue_nums, queue.perm) for queue in queues} == {(4, 4, 6)}


def test_a_call_that_there_is_not_is_answered_so(client: Client) -> None:
    """Scenario 48. RocketMQ 4 leaves the caller waiting."""
    for path in ("/namesrv_api.v1.RouteService/NoSuchCall", "/no.such.Service/NoSuchCall"):
        assert client.failure(path, b"").code is grpc.StatusCode.UNIMPLEMENTED
