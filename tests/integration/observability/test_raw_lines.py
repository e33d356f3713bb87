"""With logs of JSON, lines of a program, warnings and exceptions are objects on standard error, in every program."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from groundwork.endpoints import Endpoint
from tests.support.engines import require_native
from tests.support.fakes.troubled_program import troubled_environment
from tests.support.programs.processes import BIN, TOPICS, Process, ended, eventually
from tests.support.secured.certificates import Authority

NAMESRV, AGENT, PIPELINE = str(BIN / "namesrv"), str(BIN / "broker-agent"), str(BIN / "route-pipeline")
BROKER = ("--broker-name", "broker-a", "--broker-id", "0", "--broker-addr", "127.0.0.1:10911", "--probe", "none")
PROGRAMS = {
    "namesrv": ([NAMESRV, "serve"], "namesrv_started", "listen"),
    "agent": (
        [AGENT, "serve", *BROKER, "--namesrv", "127.0.0.1:1", "--topics", str(TOPICS)],
        "agent_started",
        "listening_on",
    ),
}
"""Command line of each, its event when it serves, and the key of that which has its address."""
ANYWHERE = ("--listen", "127.0.0.1:0")
TROUBLE = ("in a thread", "in a call", "in a finalizer", "in a callback", "in a task", "number")
"""What each tells of when everything goes wrong in it."""


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    """Each program in turn."""
    if request.param == "namesrv":
        require_native()
    return str(request.param)


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of the lines of a text, in which there is nothing else."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(each, dict) and {"event", "level", "timestamp"} <= each.keys() for each in found), text
    return found


def what_it_says(arguments: list[str], **variables: str) -> list[dict[str, Any]]:
    """What a program says that does not start."""
    done = ended(arguments, {**os.environ, **variables})
    assert done.returncode == 2
    return objects(done.stderr)


def missing_files(program: str) -> list[str]:
    """Flags of a listener whose certificate is not there."""
    return ["--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem"]


SITUATIONS: dict[str, Callable[[str, socket.socket, Path], tuple[list[str], str]]] = {
    "a setting is wrong": lambda *_: (["--listen", "nowhere"], "setting listen"),
    "there is no such flag": lambda *_: ([*ANYWHERE, "--no-such-flag"], "No such option"),
    "the port is in use": lambda _, taken, __: (["--listen", "{}:{}".format(*taken.getsockname())], "in use"),
    "a certificate is missing": lambda program, *_: ([*ANYWHERE, *missing_files(program)], "/nowhere/cert.pem"),
    "the file of settings is broken": lambda _, __, folder: (["--config", str(folder / "broken.toml")], "broken.toml"),
}
"""What is wrong, with flags and a part of the line that says so."""


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_program_that_does_not_start_says_why_in_an_object(program: str, situation: str, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("log_format = \n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags, said = SITUATIONS[situation](program, taken, tmp_path)
        lines = what_it_says([*PROGRAMS[program][0], *flags, "--log-format", "json"])
    assert [line for line in lines if said in line.get("text", "")], lines
    assert {line["event"] for line in lines} == {"cannot_start"}


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        ([], {"NAMESRV_LOG_FORMAT": "json"}),
        (["--log-format=json"], {"NAMESRV_LOG_FORMAT": "text"}),
        (["--config"], {}),
    ],
)
def test_json_is_asked_for_by_flag_variable_and_file(
    arguments: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "it.toml").write_text('log_format = "json"\nno_such_setting = 1\n')
    file = [str(tmp_path / "it.toml")] if arguments == ["--config"] else []
    (line,) = what_it_says([NAMESRV, "serve", "--listen", "nowhere", *arguments, *file], **variables)
    assert (line["event"], line["level"], line["program"]) == ("cannot_start", "error", "namesrv")


@pytest.mark.slow
def test_whatever_goes_wrong_in_a_program_is_told_in_objects(program: str, tmp_path: Path) -> None:
    authority, file = Authority(tmp_path), tmp_path / "trouble"
    certificate, key = authority.sign_server()
    command, started, where = PROGRAMS[program]
    tls = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    arguments = [*command, *ANYWHERE, *tls, "--log-format", "json"]
    with Process(arguments, troubled_environment(file)) as process:
        speak_wrongly(Endpoint.parse(str(process.wait_for(started)[where])))
        file.touch()
        eventually(lambda: untold(TROUBLE, process.raw), lambda left: not left)
        assert process.terminate() == 0
        text = process.raw
    objects(text)
    assert untold(TROUBLE, text) == []


def test_an_exception_that_ends_the_program_is_an_object_with_its_traceback() -> None:
    program = (
        "from groundwork.logs import configure_logs\nconfigure_logs('json', 'info')\nraise ValueError('two\\nlines')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    (line,) = objects(done.stderr)
    assert (done.returncode, line["event"]) == (1, "uncaught_exception")
    assert line["exception"].endswith("ValueError: two\nlines")


def untold(troubles: Sequence[str], text: str) -> list[str]:
    """Those that the text lacks."""
    return [each for each in troubles if f"trouble {each}" not in text]


def speak_wrongly(listen: Endpoint) -> None:
    """Peers that make every mistake with TLS, and one that goes without a word."""
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""):
        with socket.create_connection(listen, timeout=5) as peer, suppress(OSError):
            peer.sendall(said)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65_536):
                pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["ingest", "--namesrv", "nowhere", "--out", "log"],
        ["ingest", "--no-such-flag"],
        ["follow", "--namesrv", "127.0.0.1:1", "--out", "ftp://nowhere/log"],
        ["compact", "/nowhere/log"],
    ],
)
def test_the_pipeline_says_why_it_does_not_start_in_objects(arguments: list[str]) -> None:
    done = subprocess.run(
        [PIPELINE, *arguments, "--log-format", "json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (1, 2)
    assert objects(done.stderr)
