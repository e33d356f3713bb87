"""``nsctl compare-rocketmq`` beside another name server, over RocketMQ's protocol."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError
from nsctl import rocketmq
from nsctl.cli import app
from nsctl.rocketmq import MAX_ANSWER_BYTES, RocketmqNamesrv
from nsctl.session import FOUND, UNREACHABLE
from tests.integration.remoting.conftest import LOOPBACK, address_of
from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient, broker_fields, register, stand_in, topic_config
from tests.support.virtual_clock import VirtualClock


def compared(namesrv: NamesrvProcess, rocketmq: str, exit_code: int) -> list[dict[str, Any]]:
    arguments = ["compare-rocketmq", rocketmq, "-o", "json", "--namesrv", str(namesrv.endpoint)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == exit_code, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout) if result.stdout else []
    return rows


def test_what_differs_is_shown_and_nothing_once_it_is_the_same(namesrv: NamesrvProcess) -> None:
    other = NamesrvProcess(*LOOPBACK)
    with other, RemotingClient(address_of(namesrv)) as here, RemotingClient(address_of(other)) as there:
        register(here, ["Same", "Here"])
        register(here, [], broker_fields(addr="127.0.0.1:20911", broker_id=1))
        register(there, ["Same", topic_config("There", perm=4)])
        rows = compared(namesrv, address_of(other), FOUND)
        assert [row["broker"] for row in rows if row["part"] == "broker"] == ["broker-a"]
        assert [row["topic"] for row in rows if row["part"] == "topic"] == ["Here", "There"]
        register(there, ["Here"])
        register(there, [], broker_fields(addr="127.0.0.1:20911", broker_id=1))
        register(here, [topic_config("There", perm=4)])
        assert compared(namesrv, address_of(other), 0) == []


def test_who_does_not_answer_is_named(namesrv: NamesrvProcess) -> None:
    assert compared(namesrv, "127.0.0.1:1", UNREACHABLE) == []


def test_who_answers_something_else_is_named(namesrv: NamesrvProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert compared(namesrv, f"127.0.0.1:{listener.getsockname()[1]}", UNREACHABLE) == []
        thread.join(10)


@pytest.mark.parametrize(
    "body",
    [
        b'{"brokerAddrTable": {"broker-a": {}}}',
        b'{"brokerAddrTable": {"broker-a": {"cluster": "c", "brokerName": "b", "brokerAddrs": {"first": "a:1"}}}}',
        b'{"brokerAddrTable": {"broker-a": {"cluster": 1, "brokerName": [], "brokerAddrs": {}}}}',
        b'{"brokerAddrTable": []}',
        b"[" * 100_000,
        b"",
    ],
    ids=["fields missing", "an id that is none", "other kinds", "a list", "too deep", "nothing"],
)
def test_a_body_that_is_none_of_rocketmq_is_one_line(namesrv: NamesrvProcess, body: bytes) -> None:
    with stand_in(lambda _code: (0, "", body)) as address:
        arguments = ["compare-rocketmq", address, "--namesrv", str(namesrv.endpoint)]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == UNREACHABLE, result.output
    assert len(result.stderr.splitlines()) == 1
    assert "something else than RocketMQ's protocol" in result.stderr


def failure_of(address: str, clock: VirtualClock | None = None) -> str:
    """Why the topics of a name server of RocketMQ cannot be read."""
    monotonic = (clock or VirtualClock()).monotonic
    with RocketmqNamesrv(Endpoint.parse(address), 20.0, monotonic) as server, pytest.raises(CallError) as caught:
        server.topics()
    return str(caught.value)


def test_an_answer_of_too_many_values_is_refused_before_it_is_parsed() -> None:
    with (
        mock.patch.object(rocketmq, "MAX_ANSWER_VALUES", 10),
        stand_in(lambda _code: (0, "", b'{"topicList": [' + b"0," * 20 + b"0]}")) as address,
    ):
        assert "22 values, over the limit of 10" in failure_of(address)


def test_an_answer_that_is_too_large_is_refused_before_it_is_read() -> None:
    with mock.patch.object(rocketmq, "MAX_ANSWER_BYTES", 100), stand_in(lambda _code: (0, "", bytes(200))) as address:
        assert "ValueError('a frame of " in failure_of(address)


def test_an_answer_that_comes_byte_by_byte_is_given_up_after_a_minute() -> None:
    clock = VirtualClock()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1_000)
                connection.sendall(struct.pack(">II", MAX_ANSWER_BYTES, 5_000))
                while True:  # until the other side closes, however late it begins to wait
                    clock.advance(10.0)
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        failure = failure_of(f"127.0.0.1:{listener.getsockname()[1]}", clock)
        thread.join(10)
    assert "its answer was not whole after 60 s" in failure


def test_a_long_remark_is_cut() -> None:
    with stand_in(lambda _code: (1, "x" * 100_000, b"")) as address:
        assert len(failure_of(address)) < 1_100
