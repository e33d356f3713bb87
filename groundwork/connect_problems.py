"""What to look at when no connection came about: gRPC has one code for all of it, and only its text tells more."""

from __future__ import annotations

_HINTS = {
    "WRONG_VERSION_NUMBER": "the server speaks no TLS: leave tls_ca out, or give the server tls_cert",
    "certificate has expired": "the server's certificate has ended: renew it there",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is of an authority that tls_ca does not have",
    "BAD_SIGNATURE": "the server's certificate is of an authority that tls_ca does not have",
    "Hostname Verification Check failed": (
        "the server's certificate is for other names: call it by one of them, or set tls_server_name"
    ),
    "TSI_DATA_CORRUPTED": (
        "the server asks for a certificate, or refuses ours: look at tls_cert and tls_key, and at the server's log"
    ),
    "Handshake read failed": "the server ended the TLS handshake: it may speak no TLS, or not gRPC; see its log",
    "Socket closed": "the server ended the connection at once: if it speaks TLS, set tls_ca",
    "Failed parsing HTTP/2": "something else than gRPC listens there: look at the port",
}
"""By words in gRPC's text, the more telling ones first."""

_CONNECTING = "failed to connect to all addresses"


def hint_of(text: str) -> str | None:
    """What to look at; None if no connection was being made, or nothing is known about why there is none.

    Args:
        text: What gRPC says about a call that was UNAVAILABLE.
    """
    if _CONNECTING not in text:
        return None
    return next((hint for words, hint in _HINTS.items() if words in text), None)
