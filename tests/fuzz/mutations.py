"""Bytes that are almost right: what is in the corpus, with some of it flipped, cut, doubled, moved or replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
"""Inputs for each target; ``make fuzz`` tries more."""


def samples(name: str) -> list[bytes]:
    """Those of one folder."""
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]


HOSTILE = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud800", "\u0661\u202e".encode(), b"\r\n", b"%s", b"~x/"),
    *(b"-1", b"1e999", b"NaN", b"-Infinity", b"1" * 5_000, b"9223372036854775808", b"1_0", b"0x1", b"true", b"null"),
    *(b"[" * 2_000, b'{"a":' * 2_000, b'"' + b"x" * 5_000 + b'"', b'""', b"{}", b"[]", b"a.b=1\n", b"=", b":", b","),
    *(b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x0b" * 200, b"\x7f\xff\xff\xff", b"[::1]", b"host:1"),
)
"""What parsers stumble over: bad UTF-8, half a surrogate pair, numbers that are none, depth, length, other digits."""

LENGTHS = (0, 1, 2, 8, 255, 2**16, 2**24 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def spoiled(data: bytes, others: Sequence[bytes], choose: Callable[[Sequence[Any]], Any]) -> bytes:
    """Bytes with some of them flipped, cut, doubled, removed, or replaced, also by the end of other ones."""
    at = choose(range(len(data) + 1))
    end = min(len(data), at + choose((0, 1, 1, 2, 4, 16, 256)))
    match choose(("flip", "byte", "hostile", "length", "cut", "repeat", "splice", "remove")):
        case "flip" if at < len(data):
            data = data[:at] + bytes((data[at] ^ (1 << choose(range(8))),)) + data[at + 1 :]
        case "byte":
            data = data[:at] + bytes((choose(range(256)),)) + data[end:]
        case "hostile":
            data = data[:at] + bytes(choose(HOSTILE)) + data[end:]
        case "length":
            data = data[:at] + int(choose(LENGTHS)).to_bytes(4, "big") + data[at + 4 :]
        case "cut":
            data = data[:at]
        case "repeat":
            data = data[:end] + data[at:end] * choose((1, 2, 100)) + data[end:]
        case "splice":
            other: bytes = choose(others)
            data = data[:at] + other[choose(range(len(other) + 1)) :]
        case _:
            data = data[:at] + data[end:]
    return data
