"""The HTTP/2 headers and trailers of gRPC: metadata, deadlines, status, and the peer."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Iterable, Sequence
from urllib.parse import quote

import grpc

from namesrv.server.engines.envoy.messages import RefusedRequest

Headers = Sequence[tuple[bytes, bytes]]
Metadata = tuple[tuple[str, str | bytes], ...]

HEADER_OVERHEAD_BYTES = 32
"""Bytes that HTTP/2 counts for each header besides its name and value (RFC 9113, 6.5.2)."""

CERTIFICATE_HEADER = b"x-forwarded-client-cert"
"""The header in which Envoy names the client's certificate; Envoy replaces one that a client sends."""

_ENVOYS_OWN = (b"x-envoy-", b"x-forwarded-")
_TRANSPORT = frozenset(
    {b"host", b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"grpc-message-type"}
)

_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_TIMEOUT_DIGITS = 8

_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
"""Characters that grpc-message carries as they are; all others are percent-encoded."""


def timeout_seconds(value: bytes) -> float:
    """The deadline of a call, as seconds from now.

    Raises:
        RefusedRequest: It is none.
    """
    digits, unit = value[:-1], value[-1:]
    if unit not in _UNITS or not digits.isdigit() or len(digits) > _MAX_TIMEOUT_DIGITS:
        shown = value[:16].decode("latin-1")
        raise RefusedRequest(grpc.StatusCode.INTERNAL, f"grpc-timeout is no time: {shown!r}")
    return int(digits) * _UNITS[unit]


def is_of_envoy(name: bytes) -> bool:
    """Whether a header comes from Envoy and not from the client."""
    return name.startswith(_ENVOYS_OWN)


def metadata_of(headers: Headers) -> Metadata:
    """The metadata that a client sent. Binary values that are not base64 are left out."""
    return tuple(
        (name.decode("ascii"), value)
        for name, raw in headers
        if name not in _TRANSPORT and not is_of_envoy(name)
        for value in _values(name, raw)
    )


def _values(name: bytes, raw: bytes) -> Iterable[str | bytes]:
    if not name.endswith(b"-bin"):
        return (raw.decode("latin-1"),)
    try:
        return [binascii.a2b_base64(part.strip() + b"==") for part in raw.split(b",")]
    except binascii.Error:
        return ()


def headers_of(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    """Metadata as headers."""
    return [(name.encode("ascii"), _header_value(value)) for name, value in metadata]


def _header_value(value: str | bytes) -> bytes:
    return value.encode("ascii") if isinstance(value, str) else base64.b64encode(value).rstrip(b"=")


def status_headers(code: grpc.StatusCode, details: str) -> list[tuple[bytes, bytes]]:
    """How a call ended."""
    number: int = code.value[0]
    status = [(b"grpc-status", b"%d" % number)]
    return [*status, (b"grpc-message", quote(details, safe=_PLAIN).encode("ascii"))] if details else status


def peer_of(client: tuple[str, int] | None) -> str:
    """The peer, as grpcio writes it."""
    if client is None:
        return "unknown:"
    host, port = client
    if ipaddress.ip_address(host).version == 6:
        return f"ipv6:%5B{host}%5D:{port}"
    return f"ipv4:{host}:{port}"
