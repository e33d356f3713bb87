"""Certificates, keys and tokens: how they are read, and what clients show."""

from __future__ import annotations

import itertools
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
import structlog
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from namesrv_api.v1.route_service_pb2 import GetTopicRouteRequest
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from namesrv_common.client import channels
from namesrv_common.client.channels import ClientFiles, ClientSecurity, RenewedChannel
from namesrv_common.tls import certificates
from namesrv_common.tls.certificates import (
    MAX_FILE_BYTES,
    MAX_TOKEN_LENGTH,
    CertificateError,
    KeyPair,
    identities,
    names_in,
    read_authorities,
    read_key_pair,
    read_token,
)
from namesrv_common.tls.listener_tls import ListenerTls
from tests.support.programs.processes import eventually
from tests.support.secured.certificates import DAY, Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_client_shows_its_certificate_without_cryptography(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = authority.sign("a")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert ClientSecurity(ClientFiles(authority.path, *pair)).credentials()


def test_files_that_are_no_pair_are_refused_by_name_without_a_question(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.sign("a"), authority.sign("b")
    secret = authority.sign("c", encryption=BestAvailableEncryption(b"secret"))
    (text := tmp_path / "text").write_text("no certificate")
    (large := tmp_path / "large").write_bytes(b" " * (MAX_FILE_BYTES + 1))
    for certificate, key, problem in (
        (text, pair.key, "no certificate and private key in PEM"),
        (pair.certificate, text, "no certificate and private key in PEM"),
        (tmp_path / "gone", pair.key, "gone: No such file"),
        (Path("a\0b"), pair.key, r"^'a.x00b': embedded null byte$"),
        (pair.certificate, large, f"large: is larger than {MAX_FILE_BYTES}"),
        (pair.certificate, other.key, r"b\.key: the key does not belong to the certificate .*a\.pem"),
        (*secret, r"c\.key: the key is encrypted"),
    ):
        with pytest.raises(CertificateError, match=problem):
            read_key_pair(certificate, key)


def test_a_pair_that_is_replaced_while_it_is_read_is_refused(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = authority.sign("a"), authority.sign("b")
    read = iter([old.certificate, old.key, new.certificate, new.key])
    monkeypatch.setattr(certificates, "read_file", lambda _path: next(read).read_bytes())
    with pytest.raises(CertificateError, match="changed while they were read"):
        read_key_pair(*old)


def test_a_listener_takes_only_files_that_its_server_takes_and_warns_of_their_end(authority: Authority) -> None:
    def check(certificate: bytes, key: bytes, authorities: bytes | None) -> None:
        assert (certificate, key) == (pair.certificate.read_bytes(), pair.key.read_bytes())
        if authorities is not None:
            assert authorities == authority.path.read_bytes()
            raise ValueError("too small a key")

    pair = authority.sign("a", ends=3 * DAY)
    with pair.certificate.open("ab") as chain:
        chain.write(authority.path.read_bytes())  # it ends later, which does not matter
    with structlog.testing.capture_logs() as logged:
        assert ListenerTls(*pair, None, check=check).value.names == {"a"}
    assert [line["event"] for line in logged] == ["tls_loaded", "tls_certificate_ends_soon"]
    with pytest.raises(CertificateError, match=r"a\.pem: too small a key"):
        ListenerTls(*pair, authority.path, check=check)


@pytest.mark.parametrize(
    ("dns", "uris", "ips", "names"),
    [
        ((), (), (), {"the CN"}),
        ((), (), ("127.0.0.1",), {"the CN"}),
        (("a.example", "localhost"), ("spiffe://x/y",), ("::1",), {"a.example", "localhost", "spiffe://x/y"}),
        (tuple(f"{n}.{'x' * 60}.example" for n in range(40)), (), (), {f"{n}.{'x' * 60}.example" for n in range(40)}),
    ],
)
def test_the_names_of_a_certificate_are_its_uris_and_dns_names_or_else_its_common_name(
    tmp_path: Path, dns: tuple[str, ...], uris: tuple[str, ...], ips: tuple[str, ...], names: set[str]
) -> None:
    signed = Authority(tmp_path).sign("the CN", dns, uris, ips=ips, file_name="x")
    pem = signed.certificate.read_bytes()
    der = ssl.PEM_cert_to_DER_cert(pem.decode())
    assert set(identities(names_in(pem))) == set(identities(names_in(der, is_der=True))) == names


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_has_neither_names_nor_validity_but_an_error(content: bytes) -> None:
    with pytest.raises(CertificateError):
        names_in(content)
    with pytest.raises(CertificateError):
        _ = KeyPair(content, b"").validity


@pytest.mark.parametrize(
    ("read", "content", "problem"),
    [
        *((read_authorities, content, "file: holds no certificates") for content in (b"", b"\xff\xfe", b"text")),
        (read_token, b"\n", "holds no token"),
        (read_token, b"a b", "one line of visible ASCII"),
        (read_token, b"\xc3\xa4", "one line of visible ASCII"),
        (read_token, b"x" * (MAX_TOKEN_LENGTH + 1), f"at most {MAX_TOKEN_LENGTH}"),
    ],
)
def test_a_file_without_what_it_should_hold_is_refused(
    tmp_path: Path, read: Callable[[Path], object], content: bytes, problem: str
) -> None:
    (path := tmp_path / "file").write_bytes(content)
    with pytest.raises(CertificateError, match=problem):
        read(path)


def test_files_that_cannot_be_used_are_told_at_once(authority: Authority, tmp_path: Path) -> None:
    a, b = authority.sign("a"), authority.sign("b")
    with pytest.raises(CertificateError, match="needs its key"):
        ClientFiles(authority.path, a.certificate)
    for files in (
        ClientFiles(a.key),
        ClientFiles(authority.path, a.certificate, b.key),
        ClientFiles(authority.path, token=tmp_path / "gone"),
    ):
        with pytest.raises(CertificateError):
            ClientSecurity(files)


def test_files_on_a_disk_that_hangs_hold_up_no_calls(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    (token := authority.folder / "token").write_text("first")
    looks, disk = itertools.count(0.0, 10.0), threading.Event()
    security = ClientSecurity(ClientFiles(authority.path, token=token), lambda: next(looks))
    for reader in (read_authorities, read_token):
        monkeypatch.setattr(channels, reader.__name__, lambda path, read=reader: disk.wait() and read(path))
    token.write_text("second")
    authority.path.write_bytes(authority.path.read_bytes() * 2)
    for _ in range(5):
        assert (security.token(), security.credentials()[0]) == ("first", 1)
    disk.set()
    eventually(lambda: (security.token(), security.credentials()[0]), lambda seen: seen == ("second", 2))


def test_credentials_that_fail_once_do_not_retire_the_connection() -> None:
    connections, generation = iter(["old", OSError("planted"), "new"]), 1

    def connect(_credentials: object) -> Any:
        made = next(connections)
        if isinstance(made, OSError):
            raise made
        return SimpleNamespace(unary_unary=lambda *_: lambda: made)

    security: Any = SimpleNamespace(credentials=lambda: (generation, None), token=lambda: None)
    ask = RenewedChannel(connect, security).unary_unary("/a.B/C")
    assert ask() == "old"
    generation = 2
    with pytest.raises(OSError, match="planted"):
        ask()
    assert [ask(), ask()] == ["new", "new"]


def test_the_first_call_after_close_raises_and_does_not_end_the_process() -> None:
    security: Any = SimpleNamespace(credentials=lambda: (1, None), token=lambda: None)
    channel = RenewedChannel(lambda _: grpc.insecure_channel("127.0.0.1:1"), security)
    stub = RouteServiceStub(cast(grpc.Channel, channel))
    channel.close()
    with pytest.raises(ValueError, match="closed channel"):
        stub.GetTopicRoute(GetTopicRouteRequest(topic="T"))
