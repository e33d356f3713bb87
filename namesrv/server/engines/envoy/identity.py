"""The identity of a client by its certificate, which Envoy has checked and passes on with each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from cryptography import x509
from cryptography.x509.oid import NameOID

KNOWN_CERTIFICATES = 4_096
"""Most parsed certificates that are kept, about 3 kB each: parsing one takes longer than a lookup."""

_CERTIFICATE = b'Cert="'


@lru_cache(maxsize=KNOWN_CERTIFICATES)
def names_of(forwarded: bytes) -> Mapping[str, Sequence[bytes]]:
    """The names in a client's certificate, keyed as grpcio keys them.

    They are read from the certificate itself. Envoy could list them, but does not escape them, so one name may look
    like two.

    Args:
        forwarded: The value of Envoy's header; empty without a certificate.
    """
    begin = forwarded.find(_CERTIFICATE)
    if begin < 0:
        return {}
    encoded = forwarded[begin + len(_CERTIFICATE) :].partition(b'"')[0]
    try:
        return _names_in(x509.load_pem_x509_certificate(unquote_to_bytes(encoded)))
    except ValueError:  # an authority signed a certificate that is not valid X.509: its holder gets no name
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
