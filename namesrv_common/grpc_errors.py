"""Errors of gRPC calls: status details read and written, and hints on failed connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from namesrv_common.endpoints import Endpoint
from namesrv_common.errors import FieldViolation

# Causes of failed connections: gRPC has one code for all causes, and only its text distinguishes them.

_HINTS = {
    "WRONG_VERSION_NUMBER": "the server speaks no TLS: leave tls_ca out, or give the server tls_cert",
    "certificate has expired": "the server's certificate has ended: renew it there",
    "certificate is not yet valid": "the server's certificate is not valid yet: compare the clocks of both machines",
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
    "Tls handshake failed": "the TLS handshake failed: see the server's log",
}
"""By words in gRPC's text, the more telling ones first."""

_CONNECTING = "failed to connect to all addresses"


def hint_on(text: str) -> str:
    """The likely cause of a failed connection and, after a colon, its remedy; empty if gRPC's text does not tell."""
    return next((hint for words, hint in _HINTS.items() if _CONNECTING in text and words in text), "")


# gRPC errors with machine-readable details, written and read (google.rpc.Status, AIP-193).

DETAILS_KEY = "grpc-status-details-bin"
"""Trailing metadata key of the serialized google.rpc.Status."""

PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata key of the time after which gRPC's own retries try again, in milliseconds."""


@dataclass(frozen=True, slots=True)
class RichError:
    """An error as it travels: a canonical code, a message for people, details for programs."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    """UPPER_SNAKE reason, unique in its domain; empty if the server sent none."""
    domain: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[FieldViolation, ...] = ()
    retry_after_seconds: float | None = None
    """When to try again; None if the server did not say."""

    @property
    def pushback_millis(self) -> int | None:
        """The same in milliseconds, as the trailer for retries of gRPC libraries has it."""
        return None if self.retry_after_seconds is None else round(self.retry_after_seconds * 1000)

    def trailers(self) -> tuple[tuple[str, str | bytes], ...]:
        """The details and the pushback as ``abort`` of a server takes them: as trailing metadata."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=self.domain, metadata=dict(self.metadata))
        status.details.add().Pack(info)
        if self.violations:
            bad_request = error_details_pb2.BadRequest()
            for violation in self.violations:
                bad_request.field_violations.add(field=violation.field, description=violation.description)
            status.details.add().Pack(bad_request)
        if self.retry_after_seconds is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(int(self.retry_after_seconds * 1e9))
            status.details.add().Pack(retry)
        details = (DETAILS_KEY, status.SerializeToString())
        return (details,) if self.pushback_millis is None else (details, (PUSHBACK_KEY, str(self.pushback_millis)))

    @classmethod
    def of(cls, call: grpc.RpcError) -> Self:
        """Reads the error of a failed call of either API.

        Details that are missing or not readable are left empty. ``rpc_status.from_call`` gives up all details if one is
        broken, or if a proxy changed the text. Without a connection, the message names likely causes.
        """
        code, message = call.code(), call.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE and (hint := hint_on(message)):
            message += f"; {hint}"
        status = status_pb2.Status()
        trailers: Any = call.trailing_metadata() or ()
        for key, value in trailers:
            if key == DETAILS_KEY and isinstance(value, bytes):
                try:
                    status.ParseFromString(value)
                except DecodeError:
                    return cls(code, message)
        info = error_details_pb2.ErrorInfo()
        bad_request = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        for detail in status.details:
            for message_type in (info, bad_request, retry):
                if detail.Is(message_type.DESCRIPTOR):
                    try:
                        detail.Unpack(message_type)
                    except DecodeError:
                        message_type.Clear()
        return cls(
            code,
            message,
            reason=info.reason,
            domain=info.domain,
            metadata=dict(info.metadata),
            violations=tuple(FieldViolation(v.field, v.description) for v in bad_request.field_violations),
            retry_after_seconds=retry.retry_delay.ToNanoseconds() / 1e9 if retry.HasField("retry_delay") else None,
        )

    def __str__(self) -> str:
        reason = f" {self.reason}" if self.reason else ""
        return f"{self.code.name}{reason}: {self.message}"


# Errors of calls to a name server: it refused the request, or another name server may answer.

ELSEWHERE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Codes that say something about the name server and not about the request."""


class CallError(Exception):
    """A name server answered with an error, or did not answer."""

    def __init__(self, endpoint: Endpoint, error: RichError) -> None:
        self.endpoint = endpoint
        self.error = error
        super().__init__(f"{endpoint}: {self.reason}: {error.message}")

    @property
    def reason(self) -> str:
        """The name server's reason, or the code where it gave none."""
        return self.error.reason or self.error.code.name

    @property
    def unreachable(self) -> bool:
        """Whether it is worth asking another name server."""
        return self.error.code in ELSEWHERE
