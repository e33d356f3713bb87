"""Hints about a call that failed: which option of the data source to look at, by what gRPC and OpenSSL say."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from groundwork.grpc_errors import RichError

_BY_REASON = {
    "NOT_AUTHENTICATED": "look at the option 'tokenFile' (or 'token'), or 'tlsCertFile' and 'tlsKeyFile'",
    "NOT_PERMITTED": (
        "the caller that the option 'tokenFile', 'token' or 'tlsCertFile' stands for may not look routes up"
    ),
}
_OVER_TLS = {
    "WRONG_VERSION_NUMBER": "no TLS is spoken there: leave the option 'tls' out, or look at the port in 'endpoints'",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not one that the option 'tlsCaFile' trusts",
    "BAD_SIGNATURE": "its certificate is not one that the option 'tlsCaFile' trusts",
    "Hostname Verification Check failed": "its certificate is for another host than the option 'endpoints' names",
    "Socket closed": (
        "it may want a certificate of this client that it trusts: look at the options 'tlsCertFile' and 'tlsKeyFile'"
    ),
}
_PLAIN = {
    "Socket closed": "it may speak TLS: set the option 'tls' to 'true'",
    "Failed parsing HTTP/2": "something else than a name server listens there: look at the port in option 'endpoints'",
}


def hint_of(cause: RichError, *, tls: bool, of_call: Mapping[str, str]) -> str | None:
    """What a user can do about a failed call; None if its text says it all.

    Args:
        cause: How the call failed.
        tls: Whether it went over TLS.
        of_call: What helps with this call only, by reason of the contract.
    """
    hint = of_call.get(cause.reason) or _BY_REASON.get(cause.reason)
    if hint is not None or cause.code is not grpc.StatusCode.UNAVAILABLE:
        return hint
    # gRPC has one code for all of these; only its text tells them apart.
    return next((hint for text, hint in (_OVER_TLS if tls else _PLAIN).items() if text in cause.message), None)
