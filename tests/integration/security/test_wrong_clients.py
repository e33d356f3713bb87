"""What an operator reads when a client is of the wrong kind: a line that says what to do."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2

from namesrv_common.client.channels import ClientFiles, ClientSecurity
from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.grpc_errors import CallError
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.secured.certificates import DAY, Authority
from tests.support.secured.fleet import Place


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
        sock.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        answers.append(sock.recv(65_536))

    assert "speaks gRPC, which is HTTP/2, alone" in said(plain, talk, "client_speaks_http_1")
    assert answers[0].startswith(b"HTTP/1.1 505 ")


def test_tls_without_http_2_is_said_and_gets_no_connection(secured: NamesrvProcess) -> None:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    def talk(sock: socket.socket) -> None:
        with trusting.wrap_socket(sock) as wrapped:
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
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert not sock.recv(1)
    eventually(lambda: any(line.get("peer") == theirs for line in list(secured.lines)))
    assert not any(line.get("peer") == mine for line in list(secured.lines))


def is_told(server: NamesrvProcess, files: ClientFiles | None, event: str, problem: str, hint: str) -> bool:
    """Whether the log says so of a client, which must read the hint; gRPC may cut a connection before it says why."""
    security = None if files is None else ClientSecurity(files)
    with NamesrvClient(server.endpoint, 5.0, security) as client, pytest.raises(CallError, match=hint):
        client.route.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest())
    return any(problem in line["problem"] for line in server.events(event))


def test_what_does_not_fit_is_said_on_both_sides(plain: NamesrvProcess, place: Place) -> None:
    ca, other = place.authority.path, Authority(place.authority.folder / "other", "Other CA")
    stranger = ClientFiles(ca, *other.sign("stranger", ["x.example"]))
    ended = ClientFiles(ca, *place.authority.sign("ended", ["x.example"], begins=-3 * DAY, ends=-DAY))
    elsewhere = ClientFiles(ca, *place.callers["client"], server_name="elsewhere")
    without, refused, broken_off = "client_without_certificate", "client_certificate_refused", "handshake_broken_off"
    ours = "not accept our certificate"
    with NamesrvProcess(*place.flags("mTLS", with_permits=False)) as mutual:
        for server, files, event, problem, hint in (
            (plain, ClientFiles(ca), "client_speaks_tls", "set tls_cert and tls_key here", "the server speaks no TLS"),
            (mutual, None, "client_speaks_no_tls", "speaks no TLS", "if it speaks TLS, set tls_ca"),
            (mutual, ClientFiles(ca), without, "give it tls_cert", "look at tls_cert"),
            (mutual, stranger, refused, "tls_client_ca does not have", "look at tls_cert"),
            (mutual, ended, refused, "has ended", "look at tls_cert"),
            (mutual, ClientFiles(other.path), broken_off, ours, "of an authority"),
            (mutual, elsewhere, broken_off, ours, "for other names"),
        ):
            eventually(partial(is_told, server, files, event, problem, hint))
