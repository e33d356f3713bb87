"""TLS and mutual TLS: certificates that are wrong, that change, and the programs that use them."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner, Result

from groundwork.channels import ClientFiles
from groundwork.endpoints import Endpoint
from nsctl.cli import app as nsctl_app
from tests.support.engines import require_native
from tests.support.metrics_page import sample_of
from tests.support.programs.processes import BIN, NamesrvProcess, Process, ended, eventually
from tests.support.secured.certificates import DAY
from tests.support.secured.fleet import (
    LIVE_SECONDS,
    ROUTE,
    TOKENS,
    Place,
    connected,
    digest,
    lookup,
    refused_start,
    register,
)


@pytest.mark.parametrize(
    ("begins", "ends", "name", "told", "answer"),
    [
        (-2 * DAY, -DAY, "localhost", "the certificate expired at", "certificate has expired"),
        (DAY, 20 * DAY, "localhost", "the certificate is not valid before", "certificate is not yet valid"),
        (-DAY, 20 * DAY, "somewhere.else", None, "Hostname Verification Check failed"),
    ],
)
def test_a_servers_certificate_that_is_not_right_is_not_talked_to(
    place: Place, begins: Any, ends: Any, name: str, told: str | None, answer: str
) -> None:
    ips = ["127.0.0.1"] if name == "localhost" else []
    place.server = place.authority.sign(name, [name], ips=ips, begins=begins, ends=ends)
    with (
        NamesrvProcess(*place.flags("TLS")) as server,
        connected(server.endpoint, place.files("TLS", None)) as client,
    ):
        error = client.failure(ROUTE + "GetNamesrvStatus", b"")
        assert error.code is grpc.StatusCode.UNAVAILABLE
        assert answer in error.message
        server.wait_for("tls_loaded")
        assert [told in line["problem"] for line in server.events("tls_certificate_not_valid")] == [True] * bool(told)


def test_a_server_under_another_name_is_talked_to_if_it_is_expected(place: Place) -> None:
    place.server = place.authority.sign("ns.example", ["ns.example"])
    with NamesrvProcess(*place.flags("TLS", with_permits=False)) as server:
        with connected(server.endpoint, ClientFiles(place.authority.path, server_name="ns.example")) as client:
            assert lookup(client) == "OK"
        with connected(server.endpoint, ClientFiles(place.authority.path)) as client:
            assert lookup(client) == "UNAVAILABLE"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_tls_below_1_2_is_refused(place: Place) -> None:
    with NamesrvProcess(*place.flags("TLS")) as server:
        for version in ("-tls1_2", "-tls1_3"):
            assert b"BEGIN CERTIFICATE" in _handshake(server.endpoint, version).stdout
        old = _handshake(server.endpoint, "-tls1_1").stdout
        assert b"no peer certificate available" in old
        assert b"written 0 bytes" not in old, "the client offered the old version"


def _handshake(endpoint: Endpoint, version: str) -> subprocess.CompletedProcess[bytes]:
    # At its usual security level the client would not even offer the old version.
    command = ["openssl", "s_client", "-connect", str(endpoint), version, "-alpn", "h2", "-cipher", "ALL:@SECLEVEL=0"]
    return subprocess.run(command, input=b"", capture_output=True, timeout=20, check=False)


def test_new_certificates_are_taken_while_calls_go_on(place: Place) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(NamesrvProcess(*place.flags("mTLS")))
        files = place.files("mTLS", "broker")
        client = stack.enter_context(connected(server.endpoint, files))
        channel = client.open_channel()
        assert register(client, channel_id=channel.id) == "OK"
        place.authority.sign_server()  # instead of the first
        reloaded: list[Any] = eventually(
            lambda: [lookup(client)] and server.events("tls_reloaded"), within_seconds=LIVE_SECONDS
        )
        assert len(reloaded) == 1
        with connected(server.endpoint, files) as later:
            assert lookup(later) == "OK"
        assert lookup(client) == "OK"
        assert client.addrs() == {0: "127.0.0.1:10911"}, "the channel is still open"


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


def test_a_client_takes_new_certificates_while_its_stream_goes_on(place: Place) -> None:
    place.permit(broker={"token_sha256": [digest("old"), digest("new")]})
    place.tokens["broker"].write_text("old")
    files = ClientFiles(place.authority.path, *place.callers["client"], place.tokens["broker"])
    with NamesrvProcess(*place.flags("mTLS")) as server, connected(server.endpoint, files) as client:
        channel = client.open_channel()
        place.tokens["broker"].write_text(TOKENS["client"])
        eventually(lambda: register(client), lambda answer: answer == "NOT_PERMITTED", LIVE_SECONDS)
        place.tokens["broker"].write_text("new")
        eventually(lambda: register(client, channel_id=channel.id), lambda answer: answer == "OK", LIVE_SECONDS)
        place.authority.sign("client", ["client.example"])
        assert lookup(client) == "OK"
        place.callers["client"].certificate.write_bytes(b"nothing")
        assert lookup(client) == "OK"


def test_certificates_that_cannot_be_used_end_the_start(place: Place) -> None:
    cert, other = str(place.server.certificate), str(place.callers["client"].key)
    assert "does not belong to the certificate" in refused_start("--tls-cert", cert, "--tls-key", other)
    assert "tls_key is not" in refused_start("--tls-cert", cert)
    assert "tls_cert is not" in refused_start("--tls-client-ca", cert)


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_listener_beyond_loopback_is_warned_of_unless_it_has_tls(place: Place, *, with_tls: bool) -> None:
    require_native()
    flags = place.flags("TLS", with_permits=False) if with_tls else ["--allow-insecure"]
    with Process([str(BIN / "namesrv"), "serve", "--listen", "0.0.0.0:0", *flags, "--log-format", "json"]) as server:
        server.wait_for("namesrv_started")
        levels = [line["level"] for line in server.events("listener_without_tls")]
        assert levels == ([] if with_tls else ["warning"])


def test_nsctl_speaks_tls_by_flags_and_by_a_context(place: Place) -> None:
    with NamesrvProcess(*place.flags("token")) as server:
        contexts = place.permits.parent / "contexts.toml"
        contexts.write_text(
            f'current = "x"\n[contexts.x]\nnamesrv = "{server.endpoint}"\n'
            'tls_ca = "ca.pem"\ntoken_file = "admin.token"\n'  # relative to the file
        )

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(nsctl_app, ["status", *arguments], env={"NSCTL_CONTEXTS": str(contexts)})

        namesrv = ["--namesrv", str(server.endpoint)]
        ca, token = ["--tls-ca", str(place.authority.path)], ["--token-file", str(place.tokens["admin"])]
        assert run(*namesrv, *ca, *token).exit_code == 0
        refused = run(*namesrv, *ca)
        assert refused.exit_code == 3
        assert "NOT_AUTHENTICATED" in refused.stderr
        assert run(*namesrv, *token).exit_code == 2, "a token does not travel without TLS"
        assert run(*namesrv).exit_code == 4
        assert run("--context", "x").exit_code == run().exit_code == 0


def test_the_health_check_speaks_tls(place: Place) -> None:
    with NamesrvProcess(*place.flags("mTLS")) as server:
        program = [str(BIN / "namesrv"), "healthcheck", "--namesrv", str(server.endpoint), "--timeout", "20"]
        ca = ["--tls-ca", str(place.authority.path)]
        pair = ["--tls-cert", str(place.server.certificate), "--tls-key", str(place.server.key)]
        codes = [ended([*program, *more]).returncode for more in ([*ca, *pair], ca, [])]
        assert codes == [0, 1, 1]
        wrong = ended([*program, *ca, *pair[:2]])
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
