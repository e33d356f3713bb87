"""Every command of nsctl, at a server whose texts are all hostile: what is shown moves no cursor, forges no line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from docs.tools.generate_nsctl_options import commands
from namesrv_common.endpoints import Endpoint
from nsctl.cli import app
from tests.support.hostile.server import HOSTILE, filled, hostile_server, refused, unescaped
from tests.support.programs.rocketmq import stand_in

COMMANDS = {tuple(name.split()[1:]): one for name, one in commands(typer.main.get_command(app), "nsctl")}
del COMMANDS["console",]  # pages, with tests of their own
GIVEN = dict.fromkeys(("broker", "topic", "topics", "namespace", "key", "value"), "T")
GIVEN |= {"name": HOSTILE, "values": "a=b", "broker_id": "1", "perm": "4"}
"""What arguments of commands are, by their names."""
OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {("watch",): ("--limit", "1"), ("drain-status",): ("--yes",)}
"""Options without which a command would not end, or would ask nobody."""
KEPT = {"format": 1, "calls": [{"call": "PutKvConfig", "request": {"namespace": "n", "key": "k", "value": "v"}}]}


@pytest.fixture(scope="module", params=[filled, refused], ids=lambda answer: answer.__name__)
def server(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with hostile_server(request.param) as endpoint:
        yield endpoint


def of_rocketmq(code: int) -> tuple[int, str, bytes]:
    """A name server of RocketMQ all of whose names are hostile."""
    group = {"cluster": HOSTILE, "brokerName": HOSTILE, "brokerAddrs": {"0": HOSTILE}}
    queues = {"brokerName": HOSTILE, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    queue, offsets = {"topic": HOSTILE, "brokerName": "b", "queueId": 0}, {"brokerOffset": 1, "consumerOffset": 0}
    told: dict[int, Any] = {
        106: {"brokerAddrTable": {HOSTILE: group}},
        206: {"topicList": [HOSTILE]},
        219: {"table": {HOSTILE: HOSTILE}},
        319: {},
        105: {"queueDatas": [queues], "brokerDatas": [group]},
        28: {"table": {"putTps": "1 1 1", HOSTILE: HOSTILE, "scheduleMessageOffset_1": "0,1"}},
        317: {"consumeStatsList": [{HOSTILE: [{"offsetTable": {json.dumps(queue): offsets}}]}]},
    }
    return 0, "", json.dumps(told[code]).encode()


@pytest.fixture(scope="module", params=[of_rocketmq, lambda _code: (1, HOSTILE, b"")], ids=["full", "refused"])
def rocketmq(request: pytest.FixtureRequest) -> Iterator[str]:
    with stand_in(request.param) as address:
        yield address


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("command", [("compare-rocketmq",), ("drain-status", "b", "--broker-addr")], ids=" ".join)
def test_what_a_program_of_rocketmq_says_is_shown_and_not_obeyed(
    rocketmq: str, command: tuple[str, ...], form: str
) -> None:
    with hostile_server(filled) as namesrv:
        shown_and_not_obeyed([*command, rocketmq, "--namesrv", str(namesrv), "-o", form], form)


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("command", [command for command in COMMANDS if command != ("compare-rocketmq",)], ids=" ".join)
def test_what_a_server_says_is_shown_and_not_obeyed(
    server: Endpoint, command: tuple[str, ...], form: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    if command == ("backup", "restore"):
        file.write_text(json.dumps(KEPT))
    given = {**GIVEN, "file": str(file), "agent": str(server), "agents": str(server)}
    arguments = [one for one in COMMANDS[command].params if one.param_type_name == "argument"]
    words = [given[one.name] for one in arguments if one.required or one.name in given]
    namesrv = () if command[0] == "agent" else ("--namesrv", str(server))
    shown_and_not_obeyed([*command, *words, *OPTIONS.get(command, ()), *namesrv, "-o", form], form)


def shown_and_not_obeyed(arguments: list[str], form: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert (bool(result.stdout or result.stderr), "Usage: " in result.stderr) == (True, False), result.stderr
    assert not unescaped(result.stdout)
    assert not unescaped(result.stderr)
    assert all(line.startswith("nsctl: ") for line in result.stderr.splitlines()), result.stderr
    if form == "json" and result.stdout:
        json.loads(result.stdout)
