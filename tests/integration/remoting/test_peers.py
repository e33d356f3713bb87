"""Peers that lie, say nothing, say too much or never read: each ends by itself, and the others are served."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.remoting.conftest import address_of
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.programs.rocketmq import (
    RemotingClient,
    broker_fields,
    frame,
    packed_body,
    register,
    registration_body,
)


def lookup_is_answered(namesrv: NamesrvProcess) -> bool:
    with RemotingClient(address_of(namesrv)) as client:
        return client.ask(105, {"topic": "NOPE"}).code == 17


def task_count(client: Client) -> int:
    """The name server's tasks, counted anew each second or so."""
    return client.told_diagnostics().task_count


def mebibytes(process: NamesrvProcess, name: str) -> int:
    """A figure of a process's memory."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(status.partition(f"{name}:")[2].split()[0]) // 1024


def lines_about(namesrv: NamesrvProcess, data: bytes) -> list[dict[str, Any]]:
    """What the log says of a connection that ends because of what it sends."""
    with RemotingClient(address_of(namesrv)) as client:
        client.send_bytes(data)
        assert client.read() is None
        me = client.local_address
    return eventually(lambda: [line for line in namesrv.events("remoting_connection_ended") if line["peer"] == me])


NO_FRAMES = {
    "a length above the limit": struct.pack(">II", 16 * 1024 * 1024, 10),
    "a header longer than its frame": struct.pack(">II", 20, 17) + b"{" * 17,
    "a header that is no JSON": struct.pack(">II", 12, 8) + b"code=105",
}


@pytest.mark.parametrize("data", NO_FRAMES.values(), ids=NO_FRAMES)
def test_who_speaks_something_else_is_cut_with_a_line_that_names_him(namesrv: NamesrvProcess, data: bytes) -> None:
    assert len(lines_about(namesrv, data)) == 1
    assert lookup_is_answered(namesrv)


FOREIGN = {
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n": "an HTTP client; ",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": "a client of gRPC, which is served at --listen",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03": "it speaks TLS",
    b"PROXY TCP4 192.0.2.7 127.0.0.1 40000 9876\r\n": "a load balancer that sends the PROXY protocol",
    b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00": "a load balancer that sends the PROXY protocol",
}


@pytest.mark.parametrize(("data", "problem"), FOREIGN.items())
def test_who_came_to_the_wrong_port_is_told_with_what_to_do(namesrv: NamesrvProcess, data: bytes, problem: str) -> None:
    assert lines_about(namesrv, data)[0]["problem"].startswith(problem)


def test_a_frame_whose_rest_never_comes_registers_nobody(namesrv: NamesrvProcess, client: RemotingClient) -> None:
    whole = frame(103, broker_fields(), registration_body(["A"]))
    with RemotingClient(address_of(namesrv)) as broken_off:
        broken_off.send_bytes(whole[:-1])
    assert client.ask(106).json == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_names_with_control_characters_are_passed_over_or_refused_and_logged_as_escapes(
    namesrv: NamesrvProcess, client: RemotingClient
) -> None:
    odd = "T\x1b[2J\nX"
    assert register(client, [odd, "Good"]).code == 0
    assert client.ask(206).json == {"topicList": ["Good"]}
    assert client.ask(105, {"topic": odd}).code == 17
    for field in ("brokerName", "clusterName", "brokerAddr"):
        refused = client.ask(103, {**broker_fields("other", "127.0.0.1:9"), field: odd}, registration_body(["A"]))
        assert (refused.code, (refused.remark or "").startswith(field)) == (1, True)
    assert client.ask(206).json == {"topicList": ["Good"]}
    assert namesrv.wait_for("topics_skipped")["first"].isprintable()


def test_a_table_of_100_000_topics_is_taken_packed_while_others_are_answered(own_namesrv: NamesrvProcess) -> None:
    address = address_of(own_namesrv)
    topics = [f"topic-{number}" for number in range(100_000)]
    with RemotingClient(address) as broker, RemotingClient(address) as other:
        broker.send(103, broker_fields(), packed_body(topics))
        assert other.ask(105, {"topic": "NOPE"}).code == 17
        answer = broker.read()
        assert answer is not None
        assert answer.code == 0
        assert len(other.ask(206).json["topicList"]) == len(topics)


def test_a_frame_that_comes_byte_by_byte_is_answered(client: RemotingClient) -> None:
    for byte in frame(105, {"topic": "NOPE"}, opaque=9):
        client.send_bytes(bytes([byte]))
    answer = client.read()
    assert answer is not None
    assert answer.code == 17


def test_many_registrations_that_come_at_once_wait_for_memory_and_are_all_taken(own_namesrv: NamesrvProcess) -> None:
    address = address_of(own_namesrv)
    clients = [RemotingClient(address) for _ in range(12)]
    body = b'{"topicConfigSerializeWrapper":{}}' + b" " * 15_000_000
    rests: list[bytes] = []
    for number, client in enumerate(clients):  # 180 MB announced; 134 MB fit
        fields = {"brokerName": f"b{number}", "brokerAddr": f"127.0.0.1:{number + 1}", "clusterName": "c"}
        whole = frame(103, {**fields, "brokerId": "0"}, body)
        client.send_bytes(whole[:100_000])
        rests.append(whole[100_000:])
    # Each is sent by a thread of its own: those that find no capacity are not read until others are done.
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


NO_READERS, PIPELINED = 60, 40


def test_pipelined_lists_that_nobody_reads_take_little_memory(own_namesrv: NamesrvProcess) -> None:
    address = address_of(own_namesrv)
    with RemotingClient(address) as broker:
        register(broker, [f"{number:0127}" for number in range(3_000)])
        assert broker.ask(206).code == 0
        before = mebibytes(own_namesrv, "VmHWM")
        deaf = [RemotingClient(address) for _ in range(NO_READERS)]
        for client in deaf:
            client.send_bytes(PIPELINED * frame(206))
        for _ in range(PIPELINED):  # each list is made after one of every other connection
            assert broker.ask(206).code == 0
        assert mebibytes(own_namesrv, "VmHWM") < before + 256
        for client in deaf:
            client.close()


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
