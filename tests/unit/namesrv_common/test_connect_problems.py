"""What clients are told to look at when no connection comes about, by what gRPC says (grpcio 1.80 to 1.82)."""

from __future__ import annotations

import pytest

from namesrv_common.grpc_errors import hint_of

CONNECTING = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:9876: "
HINTS = {
    "Socket closed": "set tls_ca",
    "Handshake read failed (Socket closed)": "may speak no TLS",
    "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:"
    "WRONG_VERSION_NUMBER: Invalid certificate verification context: OK": "speaks no TLS",
    "Unwrap failed (TSI_DATA_CORRUPTED)": "look at tls_cert",
    "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
    "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK": "of an authority that tls_ca does not",
    "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
    "CERTIFICATE_VERIFY_FAILED: certificate has expired: OK": "has ended",
    "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.": "other names",
    "Failed parsing HTTP/2: Expected SETTINGS frame": "look at the port",
}


@pytest.mark.parametrize("text", HINTS)
def test_a_connection_that_did_not_come_about_says_what_to_look_at(text: str) -> None:
    assert HINTS[text] in (hint_of(CONNECTING + text) or "")


@pytest.mark.parametrize("text", ["Socket closed", "the name server is shutting down", CONNECTING + "refused", ""])
def test_about_other_failures_nothing_is_said(text: str) -> None:
    assert hint_of(text) is None
