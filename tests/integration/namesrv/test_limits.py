"""Limits that the engine keeps, and what a flood of maximal requests takes of memory."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_service_pb2

from groundwork.program import without_others
from namesrv.limits import (
    MAX_CONCURRENT_STREAMS,
    MAX_HOLDER_LENGTH,
    MAX_MESSAGE_BYTES,
    MAX_METADATA_BYTES,
    MAX_REGISTRATION_BYTES,
)
from tests.support.hostile.frames import hello
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration

DESCRIPTORS = 400
PLACES = without_others(DESCRIPTORS)
REGISTER_BROKER = "/namesrv_api.v1.RegistrationService/RegisterBroker"
HEARTBEAT = "/namesrv_api.v1.RegistrationService/BrokerHeartbeat"
OPEN_CHANNEL = "/namesrv_api.v1.RegistrationService/OpenChannel"
STATUS = route_service_pb2.GetNamesrvStatusRequest()

UNKNOWN_TAG = b"\x82\x7d"
"""Field 2,000, length-delimited: what readers of a message pass over."""

UNKNOWN_BYTES = 1_000_005
UNKNOWN_FIELD = UNKNOWN_TAG + b"\xc0\x84\x3d" + bytes(1_000_000)
"""It with a million bytes."""

FAR_TOO_MUCH_METADATA_BYTES = 4 * MAX_METADATA_BYTES
"""What the engine does not read to its end."""

CONNECTIONS, CALLS_AT_ONCE, ROUNDS = 3, 6, 2


def padded(request: Message, size: int) -> bytes:
    """The encoding of a request, filled up to a size by a field that nobody knows, again and again."""
    encoded = request.SerializeToString()
    room = size - len(encoded)
    rest = room % UNKNOWN_BYTES
    length = rest - len(UNKNOWN_TAG) - 3  # three bytes tell a length of 16 KiB and more
    told = bytes((length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14))
    return encoded + UNKNOWN_FIELD * (room // UNKNOWN_BYTES) + UNKNOWN_TAG + told + bytes(length)


def test_a_registration_may_have_16_mib_and_not_one_byte_more(client: Client) -> None:
    register = client.connection.unary_unary(REGISTER_BROKER, lambda data: data, pb.RegisterBrokerResponse.FromString)
    at_limit, past_it = (padded(registration(), MAX_REGISTRATION_BYTES + more) for more in (0, 1))
    assert (len(at_limit), len(past_it)) == (MAX_REGISTRATION_BYTES, MAX_REGISTRATION_BYTES + 1)
    error = client.failure(REGISTER_BROKER, past_it)
    assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"{MAX_REGISTRATION_BYTES + 1} vs. {MAX_REGISTRATION_BYTES}" in error.message
    assert client.route() is None
    assert register(at_limit, timeout=TIMEOUT).changed


@pytest.mark.parametrize("path", [HEARTBEAT, "/grpc.health.v1.Health/Check"])
def test_any_other_request_may_have_4_mib_and_not_one_byte_more(client: Client, path: str) -> None:
    client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
    beat = pb.BrokerHeartbeatRequest(broker=identity("127.0.0.1:10911")) if path == HEARTBEAT else HealthCheckRequest()
    at_limit, past_it = (padded(beat, MAX_MESSAGE_BYTES + more) for more in (0, 1))
    client.connection.unary_unary(path, None, None)(at_limit, timeout=TIMEOUT)
    error = client.failure(path, past_it)
    assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MAX_MESSAGE_BYTES) in error.message


def status_with_metadata(client: Client, size: int) -> grpc.RpcError | None:
    """Makes a call with metadata of so many bytes; returns its error."""
    # Without a deadline of its own, so that the bytes of grpc-timeout do not come and go.
    call: Any = client.routes.GetNamesrvStatus.future(STATUS, metadata=(("x-filler", "v" * size),))
    error: grpc.RpcError | None = call.exception(TIMEOUT)
    return error


def largest_accepted(accepts: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number that is accepted, between one that is and one that is not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def test_metadata_just_below_16_kib_is_taken_and_not_one_byte_more(client: Client) -> None:
    largest = largest_accepted(
        lambda size: status_with_metadata(client, size) is None, MAX_METADATA_BYTES // 2, MAX_METADATA_BYTES
    )
    error = status_with_metadata(client, largest + 1)
    assert error is not None
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"({MAX_METADATA_BYTES} vs. {MAX_METADATA_BYTES})" in str(error.details())


def test_far_too_much_metadata_ends_the_call_and_not_the_connection(client: Client) -> None:
    channel = client.open_channel()
    client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=TIMEOUT)
    error = status_with_metadata(client, FAR_TOO_MUCH_METADATA_BYTES)
    assert error is not None
    assert error.code() == grpc.StatusCode.UNKNOWN  # the client makes it of HTTP 431
    assert client.route() is not None


def test_a_connection_carries_so_many_calls_and_one_more_waits_at_the_client(namesrv: NamesrvProcess) -> None:
    with namesrv.connect() as client, namesrv.connect() as other:
        first, *others = [client.open_channel() for _ in range(MAX_CONCURRENT_STREAMS)]
        with pytest.raises(grpc.RpcError) as caught:
            client.routes.GetNamesrvStatus(STATUS, timeout=0.5)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        other.routes.GetNamesrvStatus(STATUS, timeout=TIMEOUT)
        waiting = client.routes.GetNamesrvStatus.future(STATUS, timeout=TIMEOUT)
        first.close()
        assert waiting.result().header.namesrv_name == str(namesrv.endpoint)
        for held in others:
            held.close()


def test_connections_beyond_the_limit_are_closed_and_there_is_room_again_when_others_end() -> None:
    with NamesrvWithFewDescriptors() as process, process.connect() as client:
        client.routes.GetNamesrvStatus(STATUS, timeout=TIMEOUT)
        with ExitStack() as held:
            connect = partial(socket.create_connection, process.endpoint, timeout=TIMEOUT)
            peers = [held.enter_context(connect()) for _ in range(PLACES + 2)]
            assert sum(is_greeted(peer) for peer in peers) == PLACES - 1, "one is the client's"
            client.routes.GetNamesrvStatus(STATUS, timeout=TIMEOUT)
        eventually(lambda: newcomer_is_greeted(process))


class NamesrvWithFewDescriptors(NamesrvProcess):
    """A name server whose connections its limit on open files bounds."""

    program = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *NamesrvProcess.program)


def newcomer_is_greeted(process: NamesrvProcess) -> bool:
    with socket.create_connection(process.endpoint, timeout=TIMEOUT) as peer:
        return is_greeted(peer)


def is_greeted(peer: socket.socket) -> bool:
    """Whether a server begins to speak HTTP/2."""
    try:
        peer.sendall(hello())
        return bool(peer.recv(1))
    except ConnectionError:
        return False


def test_a_holder_may_have_200_characters_and_not_one_more(client: Client) -> None:
    longest = "h" * MAX_HOLDER_LENGTH
    stream = client.registration.OpenChannel(pb.OpenChannelRequest(holder=longest), timeout=TIMEOUT)
    assert next(iter(stream)).opened.channel_id
    error = client.stream_failure(OPEN_CHANNEL, pb.OpenChannelRequest(holder=f"{longest}h"))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert "has 201 characters, at most 200" in error.message
