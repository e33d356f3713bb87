"""TLS decided by the first byte, certificates as callers, and listeners that do not start."""

from __future__ import annotations

import socket
import ssl
from functools import partial

import pytest
from namesrv_api.v1 import route_service_pb2

from namesrv_common.client.channels import ClientSecurity
from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from tests.integration.remoting.conftest import ALL, LOOPBACK, address_of
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient, broker_fields, register
from tests.support.secured.certificates import Files
from tests.support.secured.fleet import LIVE_SECONDS, Place, refused_start


def context_of(place: Place, shown: Files | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=place.authority.path)
    context.check_hostname = False  # RocketMQ's clients send no server name and do not check it
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


def is_answered(process: NamesrvProcess, tls: ssl.SSLContext | None) -> bool:
    """Whether a lookup over a connection of its own is answered."""
    try:
        with RemotingClient(address_of(process), tls) as client:
            client.send(105, {"topic": "NOPE"})
            return client.read() is not None
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.mark.parametrize(
    ("mode", "with_tls", "without"),
    [(["--remoting-tls", "permissive"], True, True), ([], True, False), (["--remoting-tls", "disabled"], False, True)],
    ids=["permissive", "enforcing by default", "disabled"],
)
def test_one_port_takes_connections_as_its_mode_of_tls_says(
    place: Place, mode: list[str], with_tls: bool, without: bool
) -> None:
    with NamesrvProcess(*LOOPBACK, *mode, *place.flags("TLS", with_permits=False)) as process:
        assert (is_answered(process, context_of(place)), is_answered(process, None)) == (with_tls, without)
        if not (with_tls and without):
            assert process.wait_for("remoting_connection_ended")["peer"].startswith("127.0.0.1:")


def test_over_tls_too_each_mistake_is_told_with_what_to_do(place: Place) -> None:
    with NamesrvProcess(*LOOPBACK, *place.flags("mTLS", with_permits=False)) as process:

        def is_told(problem: str) -> bool:
            return any(problem in str(line.get("problem")) for line in list(process.lines))

        endpoint = Endpoint.parse(address_of(process))
        for files, problem in (
            (place.files("mTLS", "client"), "a client of gRPC, which is served at --listen"),
            (place.files("TLS", None), "the client shows no certificate, which tls_client_ca asks for"),
            (None, "TLS: a client of gRPC, which is served at --listen"),
        ):
            security = None if files is None else ClientSecurity(files)
            with NamesrvClient(endpoint, 5.0, security) as client, pytest.raises(CallError):
                client.route.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest())
            eventually(partial(is_told, problem))
        assert not is_answered(process, None)
        eventually(partial(is_told, "TLS: it speaks none, which this port wants"))


@pytest.mark.parametrize(("kind", "is_resumed"), [("TLS", True), ("mTLS", False)])
def test_a_client_shows_its_certificate_in_each_handshake(place: Place, kind: str, is_resumed: bool) -> None:
    """Nobody looks again at the certificate of a session that is resumed."""
    context = context_of(place, place.callers["client"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with NamesrvProcess(*LOOPBACK, *place.flags(kind, with_permits=False)) as process:
        session: ssl.SSLSession | None = None
        for resumed in (False, is_resumed):
            plain = socket.create_connection(Endpoint.parse(address_of(process)), timeout=TIMEOUT)
            with context.wrap_socket(plain, session=session) as connection:
                assert connection.session_reused == resumed
                session = connection.session


def forwarded(process: NamesrvProcess, preamble: bytes) -> str | None:
    """The address that a refused registration is logged with, sent after a preamble; None if the connection ends."""
    before = len(process.events("registration_refused"))
    with RemotingClient(address_of(process)) as client:
        client.send_bytes(preamble)
        try:
            client.send(103, broker_fields("broker-a", "no-port"), b"{}")
            if client.read() is None:
                return None
        except ConnectionError:
            return None
    eventually(lambda: len(process.events("registration_refused")) > before)
    return str(process.events("registration_refused")[-1]["peer"])


def test_a_load_balancer_that_is_named_says_whose_connection_it_forwards() -> None:
    line = b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 9876\r\n"
    with NamesrvProcess(*LOOPBACK, "--remoting-proxies", "127.0.0.0/8") as process:
        assert forwarded(process, line) == "rocketmq:192.0.2.7:4711"
        assert forwarded(process, b"") is None
        assert process.wait_for("proxy_preamble_missing")["peer"].startswith("127.0.0.1:")
    with NamesrvProcess(*LOOPBACK, "--remoting-proxies", "192.0.2.0/24") as process:
        assert forwarded(process, line) is None


def test_with_permits_a_certificate_says_who_may_do_what(place: Place) -> None:
    with NamesrvProcess(*LOOPBACK, *ALL, *place.flags("mTLS")) as process:
        address = address_of(process)
        with RemotingClient(address, context_of(place, place.callers["broker"])) as broker:
            assert register(broker).code == 0
            assert broker.ask(105, {"topic": "TopicTest"}).code == 0
            other = broker_fields("broker-b", "127.0.0.1:20911")
            refused = register(broker, broker=other)
            assert (refused.code, "may not register" in (refused.remark or "")) == (1, True)
            assert [broker.ask(code, other, b"{}").code for code in (104, 322, 904)] == [1, 1, 1]
            assert register(broker, broker=broker_fields("broker-b")).code == 1
            assert broker.ask(319).code == 1
        with RemotingClient(address, context_of(place, place.callers["client"])) as client:
            assert register(client).code == 1
            assert client.ask(104, broker_fields()).code == 1
            assert client.ask(322, broker_fields(), b"{}").code == 1
            assert client.ask(904, broker_fields()).code == 1
        with RemotingClient(address, context_of(place, place.callers["admin"])) as admin:
            assert admin.ask(319).code == 0
        assert not is_answered(process, context_of(place))
        assert process.wait_for("call_refused")["peer"].startswith("rocketmq:127.0.0.1:")


def test_a_connection_without_a_certificate_has_a_name_of_its_own_in_the_permits(place: Place) -> None:
    process = NamesrvProcess(*LOOPBACK, *ALL, "--permits-file", str(place.permits))
    with process, RemotingClient(address_of(process)) as client:
        assert client.ask(105, {"topic": "NOPE"}).code == 1
        place.permit(client={"certificates": ["remoting:anonymous"]})
        eventually(lambda: client.ask(105, {"topic": "NOPE"}).code, lambda code: code == 17, LIVE_SECONDS)
        assert register(client).code == 1


def test_the_connection_of_a_broker_ends_with_its_right_to_register(place: Place) -> None:
    tls = [context_of(place, place.callers[caller]) for caller in ("broker", "client")]
    with (
        NamesrvProcess(*LOOPBACK, *ALL, *place.flags("mTLS")) as process,
        RemotingClient(address_of(process), tls[0], LIVE_SECONDS) as broker,
        RemotingClient(address_of(process), tls[1]) as client,
    ):
        assert register(broker).code == 0
        assert client.ask(105, {"topic": "TopicTest"}).code == 0
        place.permit(broker={"register": ["DefaultCluster/broker-b"]})
        assert broker.read() is None, "its connection is its channel"
        eventually(lambda: client.ask(105, {"topic": "TopicTest"}).code, lambda code: code == 17)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--remoting-listen", "0.0.0.0:0"), "--allow-insecure"),
        (("--remoting-listen", "127.0.0.1:0", "--remoting-allow", "everything"), "'everything'"),
        (("--remoting-listen", "127.0.0.1:0", "--remoting-allow", ","), "is empty"),
        (("--remoting-listen", "127.0.0.1:0", "--remoting-tls", "enforcing"), "tls_cert is not set"),
        (("--remoting-listen", "192.0.2.1:9876", "--allow-insecure"), "cannot listen on 192.0.2.1:9876"),
        (("--remoting-listen", "127.0.0.1:0", "--remoting-proxies", "10.0.0.1/8"), "10.0.0.1/8 has host bits set"),
    ],
)
def test_a_front_that_may_or_can_not_be_ends_the_start(flags: tuple[str, ...], problem: str) -> None:
    assert problem in refused_start(*flags)


def test_beyond_loopback_server_certificates_alone_prove_nothing(place: Place) -> None:
    everywhere = ("--remoting-listen", "0.0.0.0:0")
    assert "tls_client_ca" in refused_start(*everywhere, *place.flags("TLS", with_permits=False))
    with NamesrvProcess(*everywhere, *place.flags("mTLS", with_permits=False)) as process:
        assert address_of(process).startswith("0.0.0.0:")
    with NamesrvProcess(*everywhere, "--allow-insecure") as process:
        assert address_of(process).startswith("0.0.0.0:")
