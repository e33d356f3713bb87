"""What an operator reads when a client, or the engine's wheel, is of the wrong kind: a line that says what to do."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from groundwork.version import __version__
from support.engines import present
from support.programs.processes import BIN, NamesrvProcess
from support.secured import Place

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WAIT_SECONDS = 20.0

WRONG_WHEELS = {
    "another version": ("namesrv_engine.py", '__version__ = "0.0.1"\n', "is of version 0.0.1"),
    "an error when it is loaded": ("namesrv_engine.py", 'raise OSError("bad")\n', "cannot be loaded (bad)"),
    "no version": ("namesrv_engine.py", "", "cannot be loaded"),
    "no library": ("namesrv_engine.abi3.so", "not ELF", "cannot be loaded"),
    "missing": ("namesrv_engine.py", 'raise ModuleNotFoundError("no module")\n', "is not installed (no module)"),
}


@pytest.mark.parametrize("wheel", WRONG_WHEELS)
def test_a_wheel_that_cannot_be_used_is_one_line_that_says_what_to_install(wheel: str, tmp_path: Path) -> None:
    name, content, problem = WRONG_WHEELS[wheel]
    (tmp_path / name).write_text(content, encoding="ascii")
    done = subprocess.run(
        [str(BIN / "namesrv"), "serve", "--listen", "127.0.0.1:0", "--engine", "native"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("namesrv: setting engine: native cannot be used: namesrv-engine ")
    assert problem in done.stderr
    assert f"install namesrv-engine=={__version__}, or use --engine grpcio" in done.stderr


@pytest.fixture(params=[pytest.param("native", marks=pytest.mark.engines)], scope="module")
def plain(request: pytest.FixtureRequest) -> Iterator[NamesrvProcess]:
    """A name server without TLS."""
    with NamesrvProcess(engine=present(request.param)) as process:
        yield process


@pytest.fixture(params=[pytest.param("native", marks=pytest.mark.engines)], scope="module")
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesrvProcess]:
    """A name server with TLS."""
    place, engine = Place.make(tmp_path_factory.mktemp("certificates")), present(request.param)
    with NamesrvProcess(*place.flags("TLS", with_permits=False), engine=engine) as process:
        yield process


def trusting(*protocols: str) -> ssl.SSLContext:
    """A client that trusts everybody, and offers these protocols."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def said(process: NamesrvProcess, talk: Callable[[socket.socket], object], event: str) -> str:
    """What the log says of a client that talks so; the connection must end."""
    with socket.create_connection(process.endpoint, timeout=WAIT_SECONDS) as sock, contextlib.suppress(OSError):
        talk(sock)
        while sock.recv(65_536):
            pass
    line = process.wait_for(event)
    assert line["level"] == "warning"
    problem: str = line["problem"]
    return problem


def test_http_1_is_answered_in_its_own_words_and_said(plain: NamesrvProcess) -> None:
    answers: list[bytes] = []

    def talk(sock: socket.socket) -> None:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        answers.append(sock.recv(65_536))

    assert "speaks gRPC, which is HTTP/2, alone" in said(plain, talk, "client_speaks_http_1")
    assert answers[0].startswith(b"HTTP/1.1 505 ")


def test_tls_to_a_listener_without_is_said(plain: NamesrvProcess) -> None:
    problem = said(plain, lambda sock: trusting("h2").wrap_socket(sock), "client_speaks_tls")
    assert "set tls_cert, or connect without" in problem


def test_what_is_nothing_known_is_said(plain: NamesrvProcess) -> None:
    assert said(plain, lambda sock: sock.sendall(b"\0" * 24), "client_speaks_no_http_2")


def test_plain_text_to_a_listener_with_tls_is_said(secured: NamesrvProcess) -> None:
    assert "does the client speak TLS" in said(secured, lambda sock: sock.sendall(GREETING), "handshake_failed")


def test_tls_without_http_2_is_said(secured: NamesrvProcess) -> None:
    def talk(sock: socket.socket) -> None:
        with trusting().wrap_socket(sock) as wrapped:
            wrapped.recv(1)

    problem = said(secured, talk, "no_http2")
    assert "offers no HTTP/2 (ALPN h2)" in problem


def test_tls_that_offers_something_else_gets_no_connection(secured: NamesrvProcess) -> None:
    with (
        socket.create_connection(secured.endpoint, timeout=WAIT_SECONDS) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        trusting("http/1.1").wrap_socket(sock).recv(1)
    assert secured.wait_for("handshake_failed")["problem"]
