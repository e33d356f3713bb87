"""Every command of nsctl, at a server whose texts are all hostile: what is shown moves no cursor, forges no line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from namesrv_common.endpoints import Endpoint
from nsctl.cli import app
from tests.support.hostile.server import HOSTILE, filled, hostile_server, refused, unescaped
from tests.support.programs.rocketmq import stand_in

COMMANDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("status",): (),
    ("cluster",): (),
    ("brokers",): (),
    ("broker",): (HOSTILE,),
    ("topics",): (),
    ("route",): ("T",),
    ("watchers",): (),
    ("explain",): ("T",),
    ("history",): (),
    ("diff",): (),
    ("doctor",): (),
    ("intents",): (),
    ("drain",): ("b",),
    ("drained",): ("b", "--yes"),
    ("restore",): ("b",),
    ("delete-topic",): ("T",),
    ("release-topic",): ("T",),
    ("watch",): ("T", "--limit", "1"),
    ("kv", "list"): ("n",),
    ("kv", "get"): ("n", "k"),
    ("kv", "export"): ("NEW",),
    ("kv", "put"): ("n", "k", "v"),
    ("kv", "delete"): ("n", "k"),
    ("config", "show"): (),
    ("config", "set"): ("a=b",),
    ("guard", "confirm-loss"): (),
    ("backup", "save"): ("NEW",),
    ("backup", "restore"): ("KEPT",),
    ("compare-rocketmq",): (),
    ("agent", "status"): (),
    ("agent", "events"): (),
    ("agent", "role"): ("1",),
    ("agent", "permission"): ("4",),
}
"""Each with what it needs to run. NEW and KEPT are files: one that is not there yet, and this one."""
KEPT = {"format": 1, "calls": [{"call": "PutKvConfig", "request": {"namespace": "n", "key": "k", "value": "v"}}]}


def test_the_commands_here_are_all_there_are() -> None:
    group: Any = typer.main.get_command(app)
    found = {
        (name, *more)
        for name, command in group.commands.items()
        for more in ([(inner,) for inner in command.commands] if hasattr(command, "commands") else [()])
    }
    assert COMMANDS.keys() == found - {("console",)}  # pages, with tests of their own


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
@pytest.mark.parametrize("command", [("compare-rocketmq",), ("drained", "b", "--broker-addr")], ids=" ".join)
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
    files = {"NEW": str(tmp_path / "new"), "KEPT": str(tmp_path / "kept")}
    Path(files["KEPT"]).write_text(json.dumps(KEPT))
    words = [files.get(word, word) for word in COMMANDS[command]]
    whom = (str(server),) if command[0] == "agent" else ()
    namesrv = () if command[0] == "agent" else ("--namesrv", str(server))
    shown_and_not_obeyed([*command, *whom, *words, *namesrv, "-o", form], form)


def shown_and_not_obeyed(arguments: list[str], form: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.stdout or result.stderr
    assert not unescaped(result.stdout)
    assert not unescaped(result.stderr)
    assert all(line.startswith("nsctl: ") for line in result.stderr.splitlines()), result.stderr
    if form == "json" and result.stdout:
        json.loads(result.stdout)
