"""What an operator reads when a client, or the engine's wheel, is of the wrong kind: a line that says what to do."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2

from namesrv_common.client.channels import ClientFiles, ClientSecurity
from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.grpc_errors import CallError
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import BIN, NamesrvProcess, eventually
from tests.support.programs.rocketmq import frame
from tests.support.secured.certificates import DAY, Authority
from tests.support.secured.fleet import Place

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP_1, REMOTING = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", frame(105, {"topic": "T"})


def test_a_wheel_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "namesrv_engine.abi3.so").write_text("not ELF")
    done = subprocess.run(
        [str(BIN / "namesrv"), "serve", "--listen", "127.0.0.1:0"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    problem = "namesrv: setting engine: native cannot be used: namesrv-engine cannot be loaded"
    assert done.stderr.startswith(problem)


@pytest.fixture(scope="module")
def plain() -> Iterator[NamesrvProcess]:
    """A name server without TLS."""
    with NamesrvProcess() as process:
        yield process


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesrvProcess]:
    """A name server with TLS."""
    place = Place.make(tmp_path_factory.mktemp("certificates"))
    with NamesrvProcess(*place.flags("TLS", with_permits=False)) as process:
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
    with socket.create_connection(process.endpoint, timeout=TIMEOUT) as sock, contextlib.suppress(OSError):
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
        sock.sendall(HTTP_1)
        answers.append(sock.recv(65_536))

    assert "speaks gRPC, which is HTTP/2, alone" in said(plain, talk, "client_speaks_http_1")
    assert answers[0].startswith(b"HTTP/1.1 505 ")


@pytest.mark.parametrize(
    ("greeting", "event", "problem"),
    [
        (b"\0" * 24, "client_speaks_no_http_2", ""),
        (REMOTING, "client_speaks_remoting", "--remoting-listen"),
        (b"PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n", "client_sends_proxy_protocol", "PROXY protocol"),
        (b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "client_sends_proxy_protocol", "PROXY protocol"),
    ],
)
def test_what_is_no_grpc_is_named(plain: NamesrvProcess, greeting: bytes, event: str, problem: str) -> None:
    assert problem in said(plain, lambda sock: sock.sendall(greeting), event)


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)])
def test_tls_without_http_2_is_said_and_gets_no_connection(secured: NamesrvProcess, protocols: tuple[str, ...]) -> None:
    def talk(sock: socket.socket) -> None:
        with trusting(*protocols).wrap_socket(sock) as wrapped:
            wrapped.recv(1)

    assert "offers no HTTP/2 (ALPN h2)" in said(secured, talk, "no_http2")


def test_a_client_of_rocketmqs_proxy_is_told_where_it_came(plain: NamesrvProcess) -> None:
    with grpc.insecure_channel(str(plain.endpoint)) as channel:
        call = channel.unary_unary("/apache.rocketmq.v2.MessagingService/QueryRoute", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=TIMEOUT)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == "this is a name server; give the client the address of RocketMQ's proxy"
    assert plain.wait_for("client_of_rocketmq_proxy")["problem"] == caught.value.details()


def test_who_only_looks_whether_the_port_is_open_is_not_told_of(secured: NamesrvProcess) -> None:
    with socket.create_connection(secured.endpoint, timeout=TIMEOUT) as sock:
        mine = "ipv4:{}:{}".format(*sock.getsockname())
    with socket.create_connection(secured.endpoint, timeout=TIMEOUT) as sock:
        theirs = "ipv4:{}:{}".format(*sock.getsockname())
        sock.sendall(GREETING)
        assert not sock.recv(1)
    eventually(lambda: any(line.get("peer") == theirs for line in list(secured.lines)))
    assert not any(line.get("peer") == mine for line in list(secured.lines))


def test_a_flood_of_mistakes_has_a_few_lines_and_is_counted(tmp_path: Path) -> None:
    place = Place.make(tmp_path)
    with NamesrvProcess(*place.flags("TLS", with_permits=False)) as server:
        for _ in range(60):
            with socket.create_connection(server.endpoint, timeout=TIMEOUT) as sock:
                sock.sendall(GREETING)
                assert not sock.recv(1)
        said(server, lambda sock: trusting("http/1.1").wrap_socket(sock), "no_http2")  # those before are told by now
        lines = server.events("client_speaks_no_tls")
    assert 20 <= len(lines) <= 25
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in lines)


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NamesrvProcess, Place]]:
    """A name server that asks for certificates, and those."""
    place = Place.make(tmp_path_factory.mktemp("mutual"))
    with NamesrvProcess(*place.flags("mTLS", with_permits=False)) as process:
        yield process, place


def shown(place: Place, who: str) -> tuple[ClientFiles, str, str, str]:
    """What a client shows, the event and a word of the problem in the log, and a word that the client reads."""
    ca = place.authority.path
    other = Authority(place.authority.folder / "other", "Other CA")
    if who == "no certificate":
        return ClientFiles(ca), "client_without_certificate", "give it tls_cert", "look at tls_cert"
    if who == "other authority":
        pair = other.sign("stranger", ["x.example"])
        return ClientFiles(ca, *pair), "client_certificate_refused", "tls_client_ca does not have", "look at tls_cert"
    if who == "ended":
        pair = place.authority.sign("ended", ["x.example"], begins=-3 * DAY, ends=-DAY)
        return ClientFiles(ca, *pair), "client_certificate_refused", "has ended", "look at tls_cert"
    if who == "does not know us":
        return ClientFiles(other.path), "handshake_broken_off", "not accept our certificate", "of an authority"
    assert who == "other name"
    ours = place.callers["client"]
    files = ClientFiles(ca, *ours, server_name="elsewhere")
    return files, "handshake_broken_off", "not accept our certificate", "for other names"


@pytest.mark.parametrize("who", ["no certificate", "other authority", "ended", "does not know us", "other name"])
def test_a_certificate_that_does_not_fit_is_said_on_both_sides(mutual: tuple[NamesrvProcess, Place], who: str) -> None:
    server, place = mutual
    files, event, problem, hint = shown(place, who)

    def told() -> bool:
        with NamesrvClient(server.endpoint, 5.0, ClientSecurity(files)) as client, pytest.raises(CallError, match=hint):
            client.route.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest())
        return any(problem in line["problem"] for line in server.events(event))

    eventually(told)  # gRPC may cut a connection before it has said why


def test_what_a_client_says_against_our_certificate_is_quoted(secured: NamesrvProcess) -> None:
    distrusting = ssl.create_default_context()
    distrusting.set_alpn_protocols(["h2"])
    problem = said(secured, lambda sock: distrusting.wrap_socket(sock, server_hostname="x"), "our_certificate_refused")
    assert "does not know the authority of our certificate" in problem


@pytest.mark.parametrize("with_tls", [False, True])
def test_who_has_tls_and_who_has_none_is_said_on_both_sides(
    plain: NamesrvProcess, secured: NamesrvProcess, tmp_path: Path, *, with_tls: bool
) -> None:
    security = ClientSecurity(ClientFiles(Authority(tmp_path).path)) if with_tls else None
    server, hint = (plain, "the server speaks no TLS") if with_tls else (secured, "if it speaks TLS, set tls_ca")
    with NamesrvClient(server.endpoint, 5.0, security) as client, pytest.raises(CallError, match=hint):
        client.route.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest())
    event = "client_speaks_tls" if with_tls else "client_speaks_no_tls"
    problem = "set tls_cert and tls_key here, or take tls_ca from the client" if with_tls else "speaks no TLS"
    assert problem in server.wait_for(event)["problem"]
