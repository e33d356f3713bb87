"""Certificates and keys are read, checked, and their validity is known."""

from __future__ import annotations

import datetime as dt
import ssl
import sys
from pathlib import Path

import pytest

from namesrv_common.client.channels import ClientFiles, ClientSecurity
from namesrv_common.tls.certificates import (
    MAX_FILE_BYTES,
    CertificateError,
    KeyPair,
    Validity,
    identities,
    names_in,
    read_authorities,
    read_key_pair,
)
from tests.support.secured.certificates import DAY, Authority, encrypt


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_client_shows_its_certificate_without_cryptography(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = authority.sign("a")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert ClientSecurity(ClientFiles(authority.path, *pair)).credentials()


def test_validity_is_that_of_the_first_certificate_of_a_chain(authority: Authority) -> None:
    own = authority.sign("a", ends=3 * DAY).certificate.read_bytes()
    assert KeyPair(own + authority.path.read_bytes(), b"").validity == KeyPair(own, b"").validity


def test_what_is_wrong_with_a_validity_is_said() -> None:
    now = dt.datetime(2030, 1, 2, tzinfo=dt.UTC)
    first = validity_of_days(now, -1, 1)
    assert first.problem(now) is None
    assert validity_of_days(now, -2, -1).problem(now) == "expired at 2030-01-01 00:00:00 UTC"
    assert validity_of_days(now, 1, 2).problem(now) == "is not valid before 2030-01-03 00:00:00 UTC"


def validity_of_days(now: dt.datetime, begins: int, ends: int) -> Validity:
    return Validity(now + begins * DAY, now + ends * DAY)


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    a, b = authority.sign("a"), authority.sign("b")
    with pytest.raises(CertificateError, match=r"b\.key: the key does not belong to the certificate .*a\.pem"):
        read_key_pair(a.certificate, b.key)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(authority: Authority) -> None:
    pair = authority.sign("a")
    encrypt(pair.key)
    with pytest.raises(CertificateError, match=r"a\.key: the key is encrypted"):
        read_key_pair(*pair)


def test_files_that_are_none_of_the_kind_are_refused_by_name(authority: Authority, tmp_path: Path) -> None:
    pair = authority.sign("a")
    (text := tmp_path / "text").write_text("no certificate")
    (large := tmp_path / "large").write_bytes(b" " * (MAX_FILE_BYTES + 1))
    for certificate, key, problem in (
        (text, pair.key, "no certificate and private key in PEM"),
        (pair.certificate, text, "no certificate and private key in PEM"),
        (tmp_path / "gone", pair.key, "gone: No such file"),
        (tmp_path, pair.key, "Is a directory"),
        (Path("a\0b"), pair.key, r"^'a.x00b': embedded null byte$"),
        (pair.certificate, large, f"large: is larger than {MAX_FILE_BYTES}"),
    ):
        with pytest.raises(CertificateError, match=problem):
            read_key_pair(certificate, key)


def test_authorities_must_be_certificates(authority: Authority, tmp_path: Path) -> None:
    assert read_authorities(authority.path) == authority.path.read_bytes()
    for content in (b"", b"\xff\xfe", b"text", authority.sign("a").key.read_bytes()):
        (path := tmp_path / "bad").write_bytes(content)
        with pytest.raises(CertificateError, match="bad: holds no certificates"):
            read_authorities(path)


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
