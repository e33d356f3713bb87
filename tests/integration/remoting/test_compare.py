"""``nsctl compare-rocketmq`` beside another name server, over RocketMQ's protocol."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest
from typer.testing import CliRunner

from nsctl.cli import app
from nsctl.session import FOUND, UNREACHABLE
from tests.integration.remoting.conftest import LOOPBACK, address_of
from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient, broker_fields, register, stand_in, topic_config


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
        assert [row["broker"] for row in rows if row["kind"] == "broker"] == ["broker-a"]
        # All topics differ, for the slave is in their routes.
        assert [row["topic"] for row in rows if row["kind"] == "topic"] == ["Here", "Same", "There"]
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
