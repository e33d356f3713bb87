"""Every command of nsctl, at a server whose texts are all hostile: what is shown moves no cursor, forges no line."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from typer.testing import CliRunner

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError
from groundwork.namesrv_client import SERVICES
from nsctl.cli import app
from nsctl.fleet import AGENT_SERVICES
from tests.support.hostile.text import HOSTILE, unescaped
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
    ("clients",): (),
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
    ("agent", "export-topics"): ("NEW",),
    ("agent", "import-topics"): ("KEPT",),
    ("agent", "permission"): ("4",),
}
"""Each with what it needs to run. NEW and KEPT are files: one that is not there yet, and this one."""
KEPT = {
    "format": 1,
    "calls": [{"call": "PutKvConfig", "request": {"namespace": "n", "key": "k", "value": "v"}}],
    "topics": [{"topic": "T"}],
}


def test_the_commands_here_are_all_there_are() -> None:
    group: Any = typer.main.get_command(app)
    found = {
        (name, *more)
        for name, command in group.commands.items()
        for more in ([(inner,) for inner in command.commands] if hasattr(command, "commands") else [()])
    }
    assert COMMANDS.keys() == found - {("console",)}  # pages, with tests of their own


def fill(message: Message, depth: int = 6) -> Message:
    """Puts something into each field; the same text into all that take one. There is no next page."""
    for field in message.DESCRIPTOR.fields:
        if field.name != "next_page_token" and (depth or field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE):
            _fill(message, field, depth)
    return message


def _fill(message: Any, field: Any, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = {part.name: part for part in field.message_type.fields}
        key, value = _value(entry["key"]), entry["value"]
        if value.message_type is None:
            getattr(message, field.name)[key] = _value(value)
        else:
            fill(getattr(message, field.name)[key], depth - 1)
    elif field.message_type is not None:
        fill(getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name), depth - 1)
    elif field.is_repeated:
        getattr(message, field.name).append(_value(field))
    else:
        setattr(message, field.name, _value(field))


def _value(field: Any) -> Any:
    return {
        FieldDescriptor.CPPTYPE_STRING: b"\x1b" if field.type == FieldDescriptor.TYPE_BYTES else HOSTILE,
        FieldDescriptor.CPPTYPE_ENUM: 1,
        FieldDescriptor.CPPTYPE_BOOL: True,
    }.get(field.cpp_type, 1)


Answer = Callable[[MethodDescriptor, grpc.ServicerContext], Message]


def filled(method: MethodDescriptor, _context: grpc.ServicerContext) -> Message:
    """A full answer."""
    return fill(GetMessageClass(method.output_type)())


def refused(_method: MethodDescriptor, context: grpc.ServicerContext) -> Message:
    """An error all of whose texts are hostile."""
    error = RichError(grpc.StatusCode.NOT_FOUND, HOSTILE, reason=HOSTILE, domain=HOSTILE, metadata={HOSTILE: HOSTILE})
    context.abort_with_status(error.status())
    raise AssertionError


@contextmanager
def hostile_server(answer: Answer) -> Iterator[Endpoint]:
    """Answers every call of a name server and of an agent in the same way."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        for service in (*SERVICES, *AGENT_SERVICES):
            handlers = {method.name: _handler(method, answer) for method in service.methods}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        endpoint = Endpoint("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        server.start()
        try:
            yield endpoint
        finally:
            stopped: threading.Event = server.stop(0)
            assert stopped.wait(20)


def _handler(method: MethodDescriptor, answer: Answer) -> grpc.RpcMethodHandler[Any, Any]:
    def unary(_request: bytes, context: grpc.ServicerContext) -> bytes:
        return answer(method, context).SerializeToString()

    def stream(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield answer(method, context).SerializeToString()

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(stream)
    return grpc.unary_unary_rpc_method_handler(unary)


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
def test_what_a_name_server_of_rocketmq_says_is_shown_and_not_obeyed(rocketmq: str, form: str) -> None:
    with hostile_server(filled) as namesrv:
        shown_and_not_obeyed(["compare-rocketmq", rocketmq, "--namesrv", str(namesrv), "-o", form], form)


@pytest.mark.parametrize("form", ["table", "json"])
def test_what_a_broker_of_rocketmq_says_is_shown_and_not_obeyed(rocketmq: str, form: str) -> None:
    with hostile_server(filled) as namesrv:
        command = ["drained", "b", "--broker-addr", rocketmq, "--namesrv", str(namesrv), "-o", form]
        shown_and_not_obeyed(command, form)


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
