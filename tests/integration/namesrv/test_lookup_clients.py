"""Which clients look topics up: real name servers, over both protocols."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from nsctl.cli import app
from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import register


def nsctl(namesrv: NamesrvProcess, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """The rows that ``nsctl clients`` shows, and its notes."""
    shown = CliRunner().invoke(app, ["clients", *arguments, "--namesrv", str(namesrv.endpoint), "-o", "json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout), shown.stderr


def test_clients_of_both_protocols_are_listed_while_an_operator_asks_for_it() -> None:
    with (
        NamesrvProcess("--remoting-listen", "127.0.0.1:0") as namesrv,
        namesrv.connect() as client,
        RemotingClient(str(namesrv.wait_for("namesrv_started")["remoting"])) as of_rocketmq,
    ):
        register(client, "TopicTest")
        for _ in range(3):
            assert client.route() is not None  # the native engine keeps the answer
        assert nsctl(namesrv)[0] == []
        assert "records no clients; `nsctl clients --record 1h` starts it" in nsctl(namesrv)[1]
        assert "records until 2" in nsctl(namesrv, "--record", "1h")[1]
        for _ in range(3):
            assert client.route() is not None
            assert client.route("Nothing") is None
        assert of_rocketmq.ask(105, {"topic": "TopicTest"}).code == 0
        rows, _ = nsctl(namesrv, "--stop")
        assert [(row["protocol"], row["address"], row["lookup_count"], row["last_topic"]) for row in rows] == [
            ("rocketmq", "127.0.0.1", 1, "TopicTest"),
            ("grpc", "127.0.0.1", 6, "Nothing"),
        ]
        assert client.route() is not None
        rows, note = nsctl(namesrv)
        assert rows[1]["lookup_count"] == 6
        assert "recorded until 2" in note
