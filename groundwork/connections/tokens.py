"""Bearer tokens from files. No gRPC is imported here: who only checks settings does not wait for it."""

from __future__ import annotations

from pathlib import Path

from groundwork.connections.certificates import CertificateError, read_file

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
