"""Clients of something else that come to this port, told by their first bytes, and what whoever runs them should do."""

from __future__ import annotations

_HTTP = "an HTTP client; metrics and probes are at --metrics-listen"
_PROBLEMS = {
    b"PRI * HT": "a client of gRPC, which is served at --listen",
    **dict.fromkeys((b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS "), _HTTP),
    b"\x16\x03": "it speaks TLS, which this port does not: see --remoting-tls and --tls-cert",
}

TELLING_BYTES = 8
"""As many bytes tell all of them apart."""


def foreign(begun: bytes) -> str | None:
    """Who it is, and what to do; None if it is nobody that is known."""
    return next((problem for begin, problem in _PROBLEMS.items() if begun.startswith(begin)), None)
