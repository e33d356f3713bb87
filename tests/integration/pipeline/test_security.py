"""The data source against name servers with TLS and permits, and against what is no name server at all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from route_pipeline.name_server import NamesrvError
from route_pipeline.options import ReadRequest
from route_pipeline.spark_readers import NamesrvReader
from tests.support.programs.processes import NamesrvProcess
from tests.support.secured.certificates import Authority, Files
from tests.support.secured.fleet import TOKENS, Place, with_its_broker


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place.make(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def with_tokens(place: Place) -> Iterator[NamesrvProcess]:
    """Wants TLS and a token, and knows one broker."""
    with with_its_broker(place, "token") as (server, _):
        yield server


@pytest.fixture(scope="module")
def with_certificates(place: Place) -> Iterator[NamesrvProcess]:
    """Wants certificates of clients, and knows one broker."""
    with with_its_broker(place, "mTLS") as (server, _):
        yield server


def rows(endpoint: object, **options: str) -> int:
    """How many rows the table of topics has: a plan is made, and each of its parts is read."""
    quick = {"connectTimeoutSeconds": "1", "timeoutSeconds": "20"}
    reader = NamesrvReader(ReadRequest.of({"endpoints": str(endpoint), **quick, **options}))
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def problem(endpoint: object, **options: str) -> str:
    """The one line that a read fails with."""
    with pytest.raises(NamesrvError) as caught:
        rows(endpoint, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"name server {endpoint}: ")
    return text


def tls(place: Place, **options: str) -> dict[str, str]:
    return {"tls": "true", "tlsCaFile": str(place.authority.path), **options}


def showing(pair: Files) -> dict[str, str]:
    return {"tlsCertFile": str(pair.certificate), "tlsKeyFile": str(pair.key)}


def test_routes_are_read_over_tls_with_a_token_a_file_of_one_or_a_certificate(
    place: Place, with_tokens: NamesrvProcess, with_certificates: NamesrvProcess
) -> None:
    assert rows(with_tokens.endpoint, **tls(place, token=TOKENS["client"])) == 1
    assert rows(with_tokens.endpoint, **tls(place, tokenFile=str(place.tokens["client"]))) == 1
    assert rows(with_certificates.endpoint, **tls(place), **showing(place.callers["client"])) == 1


@pytest.mark.parametrize("options", [{}, {"token": "not-the-token"}])
def test_a_token_that_is_missing_or_wrong_is_told_with_its_option_and_not_repeated(
    place: Place, with_tokens: NamesrvProcess, options: dict[str, str]
) -> None:
    told = problem(with_tokens.endpoint, **tls(place, **options))
    assert "UNAUTHENTICATED NOT_AUTHENTICATED" in told
    assert "look at the option 'tokenFile' (or 'token')" in told
    assert "not-the-token" not in told


def test_an_authority_that_did_not_sign_the_server_is_told_with_its_option(
    with_tokens: NamesrvProcess, other: Authority
) -> None:
    for trusted in ({}, {"tlsCaFile": str(other.path)}):
        told = problem(with_tokens.endpoint, tls="true", token="x", **trusted)
        assert told.endswith("certificate is of an authority that the option 'tlsCaFile' does not have")


def test_a_server_under_another_name_is_told_with_its_option(place: Place, with_tokens: NamesrvProcess) -> None:
    elsewhere = f"127.0.0.2:{with_tokens.endpoint.port}"
    with NamesrvProcess("--listen", elsewhere, *place.flags("token", with_permits=False)):
        told = problem(elsewhere, **tls(place))
    assert told.endswith("certificate is for other names: call it by one of them in the option 'endpoints'")


def test_tls_on_one_side_alone_is_told(place: Place, with_tokens: NamesrvProcess) -> None:
    assert problem(with_tokens.endpoint).endswith("if it speaks TLS, set the option 'tls' to 'true'")
    with NamesrvProcess() as server:
        told = problem(server.endpoint, **tls(place))
    assert "the server speaks no TLS: leave the option 'tls' out" in told


def test_a_certificate_that_is_missing_or_not_trusted_is_told_with_its_options(
    place: Place, with_certificates: NamesrvProcess, other: Authority
) -> None:
    for shown in ({}, showing(other.sign("client", ["client.example"]))):
        told = problem(with_certificates.endpoint, **tls(place), **shown)
        assert told.endswith("look at the options 'tlsCertFile' and 'tlsKeyFile', and at the server's log")


def test_a_caller_without_the_right_to_lookup_is_told_so(place: Place, tmp_path: Path) -> None:
    permits = tmp_path / "permits.json"
    permits.write_text(place.permits.read_text().replace('"look_up": true', '"look_up": false'))
    with NamesrvProcess(*place.flags("token", with_permits=False), "--permits-file", str(permits)) as server:
        told = problem(server.endpoint, **tls(place, token=TOKENS["client"]))
    assert "PERMISSION_DENIED" in told
    assert "may not look routes up" in told


def test_what_is_no_name_server_is_told_with_the_option_or_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    with listener.accept()[0] as client:
                        client.recv(4_096)
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        pool.submit(answer)
        told = problem(f"127.0.0.1:{listener.getsockname()[1]}")
        listener.shutdown(socket.SHUT_RDWR)
    assert told.endswith("something else than gRPC listens there: look at the port in the option 'endpoints'")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "UNAVAILABLE" in problem(f"127.0.0.1:{silent.getsockname()[1]}")
