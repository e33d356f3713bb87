"""Metadata of calls, between what servicers know and the fields of HTTP/2."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

Metadata = tuple[tuple[str, str | bytes], ...]

_BINARY = "-bin"


def metadata_of(fields: Iterable[tuple[str, bytes]]) -> Metadata:
    """The metadata that a client sent. Binary values that are not base64 are left out."""
    return tuple((name, value) for name, raw in fields for value in _values(name, raw))


def _values(name: str, raw: bytes) -> Iterable[str | bytes]:
    if not name.endswith(_BINARY):
        return (raw.decode("latin-1"),)
    try:
        return [binascii.a2b_base64(part.strip() + b"==") for part in raw.split(b",")]
    except binascii.Error:
        return ()


def fields_of(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[str, bytes]]:
    """Metadata as fields."""
    return [(name, _field(value)) for name, value in metadata]


def _field(value: str | bytes) -> bytes:
    return value.encode("ascii") if isinstance(value, str) else base64.b64encode(value).rstrip(b"=")
