"""Certificates, key pairs and tokens, read from files."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from namesrv_common.files.regular_files import read_at_most

if TYPE_CHECKING:
    from cryptography import x509

# Certificates and keys from PEM files: reading them, checking that they fit together, and when they are valid.
#
# cryptography, which reads what is in a certificate, is imported where that is wanted: the client library has TLS
# without it, and the import takes 40 ms.

MAX_FILE_BYTES = 1 << 20
"""Largest file that is read: a bundle of all public authorities has a fifth of that."""


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

    @property
    def validity(self) -> Validity:
        """When the first certificate, the program's own, is valid. Raises CertificateError."""
        with _read(self.certificate) as certificate:
            return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


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
    return KeyPair(*pair)


def read_authorities(path: Path) -> bytes:
    """Reads the certificates that others are checked with, as PEM. Raises CertificateError, also if there are none."""
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
        raise CertificateError(f"{path!s:.1000}: {error.strerror}") from None
    except ValueError as error:  # a zero byte in its name
        raise CertificateError(f"{str(path)!r:.1000}: {error}") from None


def names_in(content: bytes, *, is_der: bool = False) -> Mapping[str, Sequence[bytes]]:
    """The names in a certificate, keyed as grpcio does; of a PEM text, those in the first. Raises CertificateError."""
    from cryptography import x509  # noqa: PLC0415

    with _read(content, is_der=is_der) as certificate:
        common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        names = {"x509_common_name": [str(attribute.value).encode() for attribute in common]}
        try:
            others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return names
        return names | {
            "peer_dns": [name.encode() for name in others.get_values_for_type(x509.DNSName)],
            "peer_uri": [name.encode() for name in others.get_values_for_type(x509.UniformResourceIdentifier)],
        }


def identities(names: Mapping[str, Iterable[bytes]]) -> Iterator[str]:
    """URIs and DNS names among the names in a certificate; its common names if it has neither."""
    for name in (*names.get("peer_uri", ()), *names.get("peer_dns", ())) or names.get("x509_common_name", ()):
        yield name.decode("utf-8", "replace")


@contextmanager
def _read(content: bytes, *, is_der: bool = False) -> Iterator[x509.Certificate]:
    """Parses a certificate. Content that proves malformed while it is used raises CertificateError, too."""
    from cryptography import x509  # noqa: PLC0415

    try:
        yield x509.load_der_x509_certificate(content) if is_der else x509.load_pem_x509_certificate(content)
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise CertificateError("its certificate is not encoded as X.509 says") from None


# Bearer tokens from files. No gRPC is imported here, so programs that only check settings start quickly.

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
