"""Clients of other protocols that come to this port, told by their first bytes, and their remedies."""

from __future__ import annotations

_HTTP = "an HTTP client; metrics and probes are at --metrics-listen"
_PROXY = "a load balancer that sends the PROXY protocol, which this port does not take; switch it off there"
_PROBLEMS = {
    b"PRI * HT": "a client of gRPC, which is served at --listen",
    **dict.fromkeys((b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS "), _HTTP),
    **dict.fromkeys((b"PROXY ", b"\r\n\r\n\0\r\n"), _PROXY),
    b"\x16\x03": "it speaks TLS, which this port does not: see --remoting-tls and --tls-cert",
}

TELLING_BYTES = 8
"""As many bytes tell all of them apart."""


def foreign(begun: bytes) -> str | None:
    """Returns the kind of the client and its remedy, or None if it is unknown."""
    return next((problem for begin, problem in _PROBLEMS.items() if begun.startswith(begin)), None)
