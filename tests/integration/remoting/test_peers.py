"""Peers that lie, say nothing, say too much or never read: each ends by itself, and the others are served."""

from __future__ import annotations

import socket
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from support.processes import Client, NamesrvProcess, eventually
from support.rocketmq import RemotingClient, frame, register, topic_config
from tests.integration.remoting.conftest import address_of


def lookup_is_answered(namesrv: NamesrvProcess) -> bool:
    with RemotingClient(address_of(namesrv)) as client:
        return client.ask(105, {"topic": "NOPE"}).code == 17


def task_count(client: Client) -> int:
    """The name server's tasks, counted anew each second or so."""
    status = client.routes.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest(), timeout=20)
    return status.task_count


def sent_until_it_is_not_read(connection: socket.socket, data: bytes, most: int) -> int:
    """How often something can be sent before the other end does not read any more."""
    for count in range(most):
        try:
            connection.sendall(data)
        except TimeoutError:
            return count
    return most


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">II", 2**31, 10),
        struct.pack(">II", 20, 17) + b"{" * 17,
        struct.pack(">II", 6, 1 << 24 | 2) + b"{}",
        struct.pack(">II", 6, 7 << 24 | 2) + b"{}",
        b"\0\0\0\0\0\0\0\0",
    ],
)
def test_who_speaks_something_else_is_cut_with_a_line_that_names_him(namesrv: NamesrvProcess, data: bytes) -> None:
    with RemotingClient(address_of(namesrv)) as client:
        client.send_bytes(data)
        assert client.read() is None
    assert namesrv.wait_for("remoting_connection_ended")["peer"].startswith("127.0.0.1:")
    assert lookup_is_answered(namesrv)


def test_answers_to_what_came_before_a_broken_frame_are_sent(client: RemotingClient) -> None:
    client.send_bytes(frame(105, {"topic": "NOPE"}, opaque=5) + b"\0\0\0\0\0\0\0\0")
    answer = client.read()
    assert answer is not None
    assert (answer.code, answer.opaque) == (17, 5)
    assert client.read() is None


def test_a_frame_that_comes_byte_by_byte_is_answered(client: RemotingClient) -> None:
    for byte in frame(105, {"topic": "NOPE"}, opaque=9):
        client.send_bytes(bytes([byte]))
    answer = client.read()
    assert answer is not None
    assert answer.code == 17


def test_a_grpc_client_on_this_port_gets_an_error_and_this_protocol_on_grpcs_port_gets_none(
    namesrv: NamesrvProcess,
) -> None:
    with grpc.insecure_channel(address_of(namesrv)) as channel, pytest.raises(grpc.RpcError):
        RouteServiceStub(channel).GetTopicRoute(route_service_pb2.GetTopicRouteRequest(topic="T"), timeout=5)
    with socket.create_connection(namesrv.endpoint, timeout=20) as connection:
        connection.sendall(frame(105, {"topic": "T"}))
        while connection.recv(65_536):
            pass  # what gRPC says before it closes
    assert lookup_is_answered(namesrv)


def test_a_peer_that_never_reads_is_read_from_no_more_and_others_are_served(
    namesrv: NamesrvProcess, client: RemotingClient
) -> None:
    register(client, [topic_config(f"T{number}" + "x" * 100) for number in range(5_000)])
    port = int(address_of(namesrv).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=0.5) as greedy:
        sent = sent_until_it_is_not_read(greedy, frame(206) * 100, most=2_000)  # each is half a megabyte of answers
    assert sent < 2_000
    assert lookup_is_answered(namesrv)


def test_many_registrations_that_come_at_once_wait_for_memory_and_are_all_taken(own_namesrv: NamesrvProcess) -> None:
    address = address_of(own_namesrv)
    clients = [RemotingClient(address) for _ in range(12)]
    body = b'{"topicConfigSerializeWrapper":{}}' + b" " * 15_000_000
    rests: list[bytes] = []
    for number, client in enumerate(clients):  # 180 MB announced, of which 134 fit
        fields = {"brokerName": f"b{number}", "brokerAddr": f"127.0.0.1:{number + 1}", "clusterName": "c"}
        whole = frame(103, {**fields, "brokerId": "0"}, body)
        client.send_bytes(whole[:100_000])
        rests.append(whole[100_000:])
    # Each is sent by a thread of its own: those that find no room are not read until others are done.
    with ThreadPoolExecutor(len(clients)) as threads:
        list(threads.map(RemotingClient.send_bytes, clients, rests))
    for client in clients:
        answer = client.read()
        assert answer is not None
        assert answer.code == 0
    with RemotingClient(address) as reader:
        assert len(reader.ask(106).json["brokerAddrTable"]) == 12
    for client in clients:
        client.close()


def test_a_zlib_bomb_is_refused_by_its_limit(client: RemotingClient) -> None:
    packer = zlib.compressobj()
    bomb = b"".join([*(packer.compress(b"\0" * 1_000_000) for _ in range(200)), packer.flush()])
    fields = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0"}
    answer = client.ask(103, fields, bomb)
    assert (answer.code, "bytes of an unpacked body" in (answer.remark or "")) == (1, True)


def test_connections_that_come_and_go_leave_nothing(own_namesrv: NamesrvProcess) -> None:
    address = address_of(own_namesrv)
    for number in range(200):
        with RemotingClient(address) as client:
            client.send_bytes(frame(105, {"topic": "T"})[: number % 60])
    with own_namesrv.connect() as grpc_client:
        before = task_count(grpc_client)
        with RemotingClient(address) as client:
            assert client.ask(105, {"topic": "T"}).code == 17
        eventually(lambda: task_count(grpc_client), lambda count: count <= before + 1)
