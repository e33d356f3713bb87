"""Certificates, key pairs and tokens, read from files."""

from __future__ import annotations

import datetime as dt
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from groundwork.files import read_at_most

# Certificates and keys from PEM files: reading them, checking that they fit together, and when they are valid.
#
# With the standard library alone, so that the client library needs nothing more for TLS.

MAX_FILE_BYTES = 1 << 20
"""Largest file that is read: a bundle of all public authorities has a fifth of that."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17  # tags of X.509's encoding
_EXTENSIONS, _DNS_NAME, _URI = 0xA3, 0x82, 0x86
_ALTERNATIVE_NAMES, _COMMON_NAME = b"\x06\x03\x55\x1d\x11", b"\x06\x03\x55\x04\x03"  # object identifiers
_FIRST_YEAR_OF_THE_1900S = 50  # of years with two digits (RFC 5280, 4.1.2.5.1)


class CertificateError(ValueError):
    """A certificate, key or list of authorities cannot be used. The text names the file and says why."""


class Validity(NamedTuple):
    """When a certificate is valid."""

    not_before: dt.datetime
    not_after: dt.datetime

    def problem(self, now: dt.datetime) -> str | None:
        """What is wrong with it now; None if nothing is."""
        if now < self.not_before:
            return f"is not valid before {self.not_before:%Y-%m-%d %H:%M:%S} UTC"
        if now > self.not_after:
            return f"expired at {self.not_after:%Y-%m-%d %H:%M:%S} UTC"
        return None


class KeyPair(NamedTuple):
    """A certificate with the intermediate ones that signed it, and its private key, all as PEM."""

    certificate: bytes
    key: bytes
    validity: Validity
    """When the first certificate, the program's own, is valid."""


def read_key_pair(certificate: Path, key: Path) -> KeyPair:
    """Reads a certificate chain and its private key.

    Raises:
        CertificateError: A file cannot be read, is not what it should be, or the key belongs to another certificate.
    """
    pair = read_file(certificate), read_file(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def refuse() -> NoReturn:  # OpenSSL would ask at the terminal
        raise CertificateError(f"{key}: the key is encrypted; it must not be")

    try:
        context.load_cert_chain(certificate, key, refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError(f"{key}: the key does not belong to the certificate {certificate}") from None
        problem = f"{certificate} and {key} are no certificate and private key in PEM"
        raise CertificateError(f"{problem} ({error.reason or error})") from None
    except OSError as error:
        raise CertificateError(f"{certificate} and {key}: {error.strerror or error}") from None
    if pair != (read_file(certificate), read_file(key)):
        raise CertificateError(f"{certificate} and {key} changed while they were read")
    return KeyPair(*pair, validity_of(pair[0]))


def read_authorities(path: Path) -> bytes:
    """Reads the certificates that others are checked with, as PEM.

    Raises:
        CertificateError: The file cannot be read, or holds no certificate.
    """
    text = read_file(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise CertificateError(f"{path}: holds no certificates in PEM") from None
    return text


def read_file(path: Path) -> bytes:
    """The bytes of a small file. Raises CertificateError."""
    try:
        return read_at_most(path, MAX_FILE_BYTES)
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # a zero byte in its name
        raise CertificateError(f"{str(path)!r}: {error}") from None


def validity_of(pem: bytes) -> Validity:
    """When the first certificate of a PEM text is valid. Raises CertificateError."""
    found = _CERTIFICATE.search(pem)
    if found is None:
        raise CertificateError("holds no certificate in PEM")
    try:
        der = ssl.PEM_cert_to_DER_cert(found.group().decode("ascii"))
        return _validity(der)
    except (ValueError, IndexError):
        raise CertificateError("its certificate is not encoded as X.509 says") from None


def names_of(pem: bytes) -> frozenset[str]:
    """URIs and DNS names of the first certificate of a PEM text; its common names if it has neither.

    Raises:
        CertificateError: There is none, or it is not encoded as it should be.
    """
    found = _CERTIFICATE.search(pem)
    if found is None:
        raise CertificateError("holds no certificate in PEM")
    try:
        return _names(ssl.PEM_cert_to_DER_cert(found.group().decode("ascii")))
    except (ValueError, IndexError):
        raise CertificateError("its certificate is not encoded as X.509 says") from None


def _names(der: bytes) -> frozenset[str]:
    """Walks to the subject and to the extensions, which are the last of the TBSCertificate."""
    _, begin, end = _elements(der, 0, len(der))[0]
    _, begin, end = _elements(der, begin, end)[0]
    fields = _elements(der, begin, end)
    subject = fields[5 if fields[0][0] == _VERSION else 4]
    alternative: list[str] = []
    for tag, begin, end in fields:
        if tag == _EXTENSIONS:
            [(_, first, last)] = _elements(der, begin, end)
            for _, at, until in _elements(der, first, last):
                alternative += _alternative_names(der, at, until)
    return frozenset(alternative or _common_names(der, subject[1], subject[2]))


def _alternative_names(der: bytes, begin: int, end: int) -> Iterator[str]:
    """Of an extension, if it is the one that has them."""
    if not der.startswith(_ALTERNATIVE_NAMES, begin):
        return
    *_, (_, begin, end) = _elements(der, begin, end)  # after the identifier and perhaps a boolean: an octet string
    _, begin, end = _elements(der, begin, end)[0]
    for tag, at, until in _elements(der, begin, end):
        if tag in {_DNS_NAME, _URI}:
            yield der[at:until].decode("utf-8", "replace")


def _common_names(der: bytes, begin: int, end: int) -> Iterator[str]:
    for _, set_begin, set_end in _elements(der, begin, end):
        for _, at, until in _elements(der, set_begin, set_end):
            if der.startswith(_COMMON_NAME, at):
                *_, (_, text, text_end) = _elements(der, at, until)
                yield der[text:text_end].decode("utf-8", "replace")


def _elements(der: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """Tag, begin and end of the content of each element between two positions."""
    found = []
    while at < end:
        tag = der[at]
        begin, after = _inside(der, at)
        found.append((tag, begin, after))
        at = after
    return found


def _validity(der: bytes) -> Validity:
    """Walks to the field: Certificate, TBSCertificate; there after version, number, algorithm and issuer."""
    at, _ = _inside(der, 0)
    at, _ = _inside(der, at)
    if der[at] == _VERSION:
        at = _after(der, at)
    for _ in range(3):
        at = _after(der, at)
    at, _ = _inside(der, at)
    return Validity(_time(der, at), _time(der, _after(der, at)))


def _inside(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element at a position begins and ends."""
    length, begin = der[at + 1], at + 2
    if length >= 0x80:  # the length has a length
        count = length & 0x7F
        length = int.from_bytes(der[begin : begin + count], "big")
        begin += count
    return begin, begin + length


def _after(der: bytes, at: int) -> int:
    return _inside(der, at)[1]


def _time(der: bytes, at: int) -> dt.datetime:
    begin, end = _inside(der, at)
    text = der[begin:end].decode("ascii")
    if der[at] == _UTC_TIME:
        text = ("19" if int(text[:2]) >= _FIRST_YEAR_OF_THE_1900S else "20") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC)


# Bearer tokens from files. No gRPC is imported here: who only checks settings does not wait for it.

MAX_TOKEN_LENGTH = 4_096
"""Longest bearer token: it travels in the metadata of every call, which servers bound."""


def read_token(path: Path) -> str:
    """The bearer token in a file. Raises CertificateError."""
    text = read_file(path).strip()
    if not text:
        raise CertificateError(f"{path}: holds no token")
    if len(text) > MAX_TOKEN_LENGTH:
        raise CertificateError(f"{path}: the token has {len(text)} bytes, at most {MAX_TOKEN_LENGTH}")
    if not all(0x21 <= byte <= 0x7E for byte in text):  # what metadata may hold, without spaces
        raise CertificateError(f"{path}: the token must be one line of visible ASCII characters")
    return text.decode("ascii")
