"""The data source against name servers with TLS and permits, and against one that says nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
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


def test_a_caller_without_the_right_to_lookup_is_told_so(place: Place, tmp_path: Path) -> None:
    permits = tmp_path / "permits.json"
    permits.write_text(place.permits.read_text().replace('"look_up": true', '"look_up": false'))
    with NamesrvProcess(*place.flags("token", with_permits=False), "--permits-file", str(permits)) as server:
        told = problem(server.endpoint, **tls(place, token=TOKENS["client"]))
    assert "PERMISSION_DENIED" in told
    assert "may not look routes up" in told


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "UNAVAILABLE" in problem(f"127.0.0.1:{silent.getsockname()[1]}")
