"""Certificates of a fleet, made for a test: an authority, and what it signs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


class Files(NamedTuple):
    """Where a certificate and its key are."""

    certificate: Path
    key: Path


class Authority:
    """An authority in a folder, which signs certificates."""

    def __init__(self, folder: Path, name: str = "Test CA") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key.public_key(), -DAY, 365 * DAY)
        basic = x509.BasicConstraints(ca=True, path_length=None)
        certificate = builder.add_extension(basic, critical=True).sign(self._key, hashes.SHA256())
        self.path = folder / "ca.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(
        self,
        name: str,
        dns: Sequence[str] = (),
        uris: Sequence[str] = (),
        *,
        ips: Sequence[str] = (),
        begins: dt.timedelta = -DAY,
        ends: dt.timedelta = 30 * DAY,
        file_name: str | None = None,
        curve: ec.EllipticCurve = ec.SECP256R1(),  # noqa: B008 - it has no state
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption(),  # noqa: B008 - nor has this
    ) -> Files:
        """A certificate with a common name and further names, valid from and until so long from now."""
        key = ec.generate_private_key(curve)
        names: list[x509.GeneralName] = [
            *map(x509.DNSName, dns),
            *map(x509.UniformResourceIdentifier, uris),
            *(x509.IPAddress(ip_address(ip)) for ip in ips),
        ]
        builder = _builder(_name(name), self._name, key.public_key(), begins, ends)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        files = Files(self.folder / f"{file_name or name}.pem", self.folder / f"{file_name or name}.key")
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        files.key.write_bytes(key.private_bytes(pem, pkcs8, encryption))
        return files

    def sign_caller(self, name: str) -> Files:
        """A certificate for a caller, which may listen on loopback, too; a later one replaces the one before."""
        return self.sign(f"CN of {name}", [f"{name}.example", "localhost"], ips=["127.0.0.1"], file_name=name)

    def sign_server(self) -> Files:
        """A certificate for a listener on loopback; a later one replaces the one before."""
        return self.sign("localhost", ["localhost"], ips=["127.0.0.1"], file_name="server")


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: dt.timedelta, ends: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )
