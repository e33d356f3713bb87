"""TLS and mutual TLS: certificates that are wrong or change, programs that use them, and clients of a wrong kind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from namesrv_api.v1 import route_service_pb2

from broker_agent.listener import SERVICE_NAME
from namesrv_common.client.channels import ClientFiles, ClientSecurity, check_health, open_aio_channel, open_channel
from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.grpc_errors import CallError
from route_client import ClientSettings, RouteClient
from tests.support.engines import require_native
from tests.support.metrics_page import sample_of
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent
from tests.support.programs.processes import BIN, NamesrvProcess, ended, eventually, sample
from tests.support.registrations import unregister
from tests.support.secured.certificates import DAY, Authority
from tests.support.secured.fleet import (
    LIVE_SECONDS,
    TOKENS,
    Place,
    connected,
    lookup,
    refused_start,
    register,
    with_its_broker,
)


@pytest.mark.parametrize(
    ("begins", "ends", "told"),
    [
        (-2 * DAY, -DAY, "the certificate expired at"),
        (DAY, 20 * DAY, "the certificate is not valid before"),
        (-DAY, 20 * DAY, None),
    ],
)
def test_a_certificate_that_is_not_valid_is_told_of(place: Place, begins: Any, ends: Any, told: str | None) -> None:
    place.server = place.authority.sign("localhost", begins=begins, ends=ends)
    with NamesrvProcess("--listen", "0.0.0.0:0", *place.flags("TLS")) as server:
        server.wait_for("tls_loaded")
        assert [told in line["problem"] for line in server.events("tls_certificate_not_valid")] == [True] * bool(told)
        assert server.events("listener_without_tls") == []


def test_a_listener_beyond_loopback_without_tls_is_warned_of() -> None:
    with NamesrvProcess("--listen", "0.0.0.0:0", "--allow-insecure") as server:
        assert [line["level"] for line in server.events("listener_without_tls")] == ["warning"]


def test_a_pair_that_only_the_engine_refuses_keeps_the_old_one(place: Place) -> None:
    require_native()
    files = place.flags("TLS", with_permits=False)
    with NamesrvProcess(*files, "--metrics-listen", "127.0.0.1:0") as server:
        ends = sample_of(server, "namesrv_certificate_not_after_seconds")
        good = [path.read_bytes() for path in place.server]
        place.authority.sign("localhost", ["localhost"], ends=2 * DAY, file_name="server", curve=ec.SECP521R1())
        refused = eventually(lambda: server.events("tls_files_refused"), within_seconds=LIVE_SECONDS)
        assert "certificate and key" in refused[0]["problem"]
        assert sample_of(server, "namesrv_certificate_not_after_seconds") == ends
        for path, content in zip(place.server, good, strict=True):
            path.write_bytes(content)
        eventually(lambda: server.events("tls_reloaded"), within_seconds=LIVE_SECONDS)
        with connected(server.endpoint, place.files("TLS", None)) as client:
            assert lookup(client) == "OK"


def test_a_client_shows_the_token_that_its_file_has_now(place: Place) -> None:
    place.tokens["broker"].write_text(TOKENS["client"])
    with (
        NamesrvProcess(*place.flags("token")) as server,
        connected(server.endpoint, place.files("token", "broker")) as client,
    ):
        assert register(client) == "NOT_PERMITTED"
        place.tokens["broker"].write_text(TOKENS["broker"])
        eventually(lambda: register(client), lambda answer: answer == "OK", LIVE_SECONDS)


def test_certificates_that_cannot_be_used_end_the_start(place: Place) -> None:
    cert, other = str(place.server.certificate), str(place.callers["client"].key)
    assert "does not belong to the certificate" in refused_start("--tls-cert", cert, "--tls-key", other)


def test_the_health_check_speaks_tls(place: Place) -> None:
    with NamesrvProcess(*place.flags("mTLS")) as server:
        program = [str(BIN / "namesrv"), "healthcheck", "--namesrv", str(server.endpoint), "--timeout", "20"]
        ca = ["--tls-ca", str(place.authority.path)]
        pair = ["--tls-cert", str(place.server.certificate), "--tls-key", str(place.server.key)]
        codes = [ended([*program, *more]).returncode for more in ([*ca, *pair], ca, [])]
        assert codes == [0, 1, 1]
        wrong = ended([*program, *ca, *pair[:2]])
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_an_agent_over_tls_is_healthy_to_all_and_takes_a_new_certificate(place: Place) -> None:
    flags = (*place.agent_flags("broker"), "--permits-file", str(place.permits))
    with (
        NamesrvProcess(*place.flags("mTLS")) as server,
        Agent(str(server.endpoint), *flags, prefix=("env", "-u", "GRPC_VERBOSITY")) as agent,
        connected(server.endpoint, place.files("mTLS", "client")) as client,
    ):
        eventually(client.addrs, lambda addrs: addrs == {0: "127.0.0.1:10911"})
        files = ClientFiles(place.authority.path)
        for endpoint, service in ((agent.endpoint, SERVICE_NAME), (agent.ordinary, "")):
            over_tls = partial(check_health, endpoint, service, 20, ClientSecurity(files))
            eventually(over_tls, lambda problem: problem is None)
            assert check_health(endpoint, service, 20) is not None, "without TLS there is no answer"
        program = [str(BIN / "broker-agent"), "healthcheck", "--fast-listen", str(agent.endpoint)]
        # It has three seconds, and no flag for more.
        eventually(lambda: ended([*program, *place.agent_flags("broker")]).returncode, lambda code: code == 0)
        assert ended(program).returncode == 1
        place.authority.sign_caller("broker")
        eventually(lambda: "read again" in agent.raw or agent.events("tls_reloaded"), within_seconds=60)
        assert client.addrs() == {0: "127.0.0.1:10911"}
        assert agent.terminate() == 0
        assert client.addrs() == {}, "it could still unregister"
        assert len(agent.lines) == agent.raw.count("\n"), "gRPC says nothing past the log"


def test_a_client_looks_up_and_watches_over_tls_with_a_token(place: Place, tmp_path: Path) -> None:
    settings = ClientSettings(tls=place.files("token", "client"), cache_dir=tmp_path / "cache", poll_seconds=300)

    def is_gone() -> bool:
        known = client.cached("TopicTest")
        return known is not None and known.route is None

    with with_its_broker(place, "token") as (server, broker), RouteClient(str(server.endpoint), settings) as client:
        client.route("TopicTest")
        assert client.find_broker_address_in_publish("broker-a") == "127.0.0.1:10911"
        unregister(broker)
        eventually(is_gone)  # told by the watch: the next poll is minutes away


MAX_MORE_FILES = 12
ROUTES = "/namesrv_api.v1.RouteService/"


async def test_clients_close_connections_that_are_out_of_date(place: Place) -> None:
    shown = place.files("mTLS", "client")
    looks = itertools.count(0.0, 10.0)  # a clock on which it is always time for another look
    security = ClientSecurity(shown, lambda: next(looks))
    follow = route_service_pb2.StreamRouteSnapshotRequest(follow=True)
    with (
        NamesrvProcess(*place.flags("mTLS", with_permits=False)) as server,
        open_channel(server.endpoint, (), security) as blocking,
    ):
        connection = open_aio_channel(server.endpoint, (), security)
        channels: tuple[Any, Any] = (connection, blocking)
        stream, blocking_stream = (
            one.unary_stream(f"{ROUTES}StreamRouteSnapshot", None, None)(follow.SerializeToString()) for one in channels
        )
        assert await stream.read()
        assert await asyncio.to_thread(next, blocking_stream)
        ask, ask_blocking = (one.unary_unary(f"{ROUTES}GetNamesrvStatus", None, None) for one in channels)
        first = sample(os.getpid())["files"]
        for _ in range(50):
            place.authority.sign_caller("client")
            security.credentials()
            assert await ask(b"", timeout=TIMEOUT)
            assert await asyncio.to_thread(ask_blocking, b"", timeout=TIMEOUT)
        assert security.credentials()[0] > 40
        await asyncio.to_thread(eventually, lambda: sample(os.getpid())["files"] <= first + MAX_MORE_FILES)
        assert blocking_stream.is_active()
        assert not stream.done()
        blocking_stream.cancel()
        await connection.close(None)


# What an operator reads when a client is of the wrong kind: a line that says what to do.


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesrvProcess]:
    """A name server with TLS."""
    place = Place.make(tmp_path_factory.mktemp("certificates"))
    with NamesrvProcess(*place.flags("TLS", with_permits=False)) as process:
        yield process


def test_http_1_is_answered_in_its_own_words_and_said(namesrv: NamesrvProcess) -> None:
    with socket.create_connection(namesrv.endpoint, timeout=TIMEOUT) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert sock.recv(65_536).startswith(b"HTTP/1.1 505 ")
    line = namesrv.wait_for("client_speaks_http_1")
    assert (line["level"], "speaks gRPC, which is HTTP/2, alone" in line["problem"]) == ("warning", True)


def test_tls_without_http_2_is_said_and_gets_no_connection(secured: NamesrvProcess) -> None:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(secured.endpoint, timeout=TIMEOUT) as sock,
        contextlib.suppress(OSError),
        trusting.wrap_socket(sock) as wrapped,
    ):
        assert not wrapped.recv(1)
    assert "offers no HTTP/2 (ALPN h2)" in secured.wait_for("no_http2")["problem"]


def test_a_client_of_rocketmqs_proxy_is_told_where_it_came(namesrv: NamesrvProcess) -> None:
    with grpc.insecure_channel(str(namesrv.endpoint)) as channel:
        call = channel.unary_unary("/apache.rocketmq.v2.MessagingService/QueryRoute", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=TIMEOUT)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == "this is a name server; give the client the address of RocketMQ's proxy"
    assert namesrv.wait_for("client_of_rocketmq_proxy")["problem"] == caught.value.details()


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


def test_what_does_not_fit_is_said_on_both_sides(namesrv: NamesrvProcess, place: Place) -> None:
    ca, other = place.authority.path, Authority(place.authority.folder / "other", "Other CA")
    stranger = ClientFiles(ca, *other.sign("stranger", ["x.example"]))
    ended = ClientFiles(ca, *place.authority.sign("ended", ["x.example"], begins=-3 * DAY, ends=-DAY))
    elsewhere = ClientFiles(ca, *place.callers["client"], server_name="elsewhere")
    without, refused, broken_off = "client_without_certificate", "client_certificate_refused", "handshake_broken_off"
    ours, here = "not accept our certificate", "set tls_cert and tls_key here"
    with NamesrvProcess(*place.flags("mTLS", with_permits=False)) as mutual:
        for server, files, event, problem, hint in (
            (namesrv, ClientFiles(ca), "client_speaks_tls", here, "the server speaks no TLS"),
            (mutual, None, "client_speaks_no_tls", "speaks no TLS", "if it speaks TLS, set tls_ca"),
            (mutual, ClientFiles(ca), without, "give it tls_cert", "look at tls_cert"),
            (mutual, stranger, refused, "tls_client_ca does not have", "look at tls_cert"),
            (mutual, ended, refused, "has ended", "look at tls_cert"),
            (mutual, ClientFiles(other.path), broken_off, ours, "of an authority"),
            (mutual, elsewhere, broken_off, ours, "for other names"),
        ):
            eventually(partial(is_told, server, files, event, problem, hint))
