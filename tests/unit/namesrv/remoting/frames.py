"""Frames as RocketMQ's brokers and clients make them, for tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any


def frame(header: bytes, body: bytes = b"", encoding: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), encoding << 24 | len(header)) + header + body


def json_header(code: int = 105, fields: Mapping[str, str] | None = None, opaque: int = 7, **others: Any) -> bytes:
    values = {"code": code, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 513, **others}
    if fields is not None:
        values["extFields"] = fields
    return json.dumps(values).encode()


def binary_header(code: int = 105, fields: Mapping[str, str] | None = None, opaque: int = 7, flag: int = 0) -> bytes:
    encoded = b""
    for name, value in (fields or {}).items():
        encoded += struct.pack(">H", len(name.encode())) + name.encode()
        encoded += struct.pack(">i", len(value.encode())) + value.encode()
    fixed = struct.pack(">hBhii", code, 0, 513, opaque, flag)
    return fixed + struct.pack(">i", 0) + struct.pack(">i", len(encoded)) + encoded
