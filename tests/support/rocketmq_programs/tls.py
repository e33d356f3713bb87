"""Settings with which programs of RocketMQ use TLS."""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization

from tests.support.rocketmq_programs.programs import Properties
from tests.support.secured.certificates import Authority, Files


def properties_of(authority: Authority, shown: Files) -> Properties:
    """What a program of RocketMQ is told to use TLS with, show a certificate and check the other's."""
    key = serialization.load_pem_private_key(shown.key.read_bytes(), None)
    pkcs8 = shown.key.with_suffix(".pkcs8")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pkcs8.write_bytes(key.private_bytes(*form))
    return {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.certPath": str(shown.certificate),
        "tls.client.keyPath": str(pkcs8),
        "tls.client.trustCertPath": str(authority.path),
        "tls.client.authServer": "true",
        "tls.server.certPath": str(shown.certificate),
        "tls.server.keyPath": str(pkcs8),
        "tls.config.file": "none",
    }
