"""Who a client is by its certificate, which the engine has checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import NameOID

KNOWN_CERTIFICATES = 4_096
"""Certificates that are kept read, about 3 kB each: reading one takes longer than a lookup."""


@lru_cache(maxsize=KNOWN_CERTIFICATES)
def names_of(certificate: bytes) -> Mapping[str, Sequence[bytes]]:
    """The names in a client's certificate (DER), keyed as grpcio keys them."""
    try:
        return _names_in(x509.load_der_x509_certificate(certificate))
    except ValueError:  # an authority signed what is no X.509: whoever shows it has no name
        return {}


def _names_in(certificate: x509.Certificate) -> Mapping[str, Sequence[bytes]]:
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    names = {"x509_common_name": [str(attribute.value).encode() for attribute in common]}
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return names
    return names | {
        "peer_dns": [name.encode() for name in others.get_values_for_type(x509.DNSName)],
        "peer_uri": [name.encode() for name in others.get_values_for_type(x509.UniformResourceIdentifier)],
    }
