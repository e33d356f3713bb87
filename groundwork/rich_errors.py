"""gRPC errors with machine-readable details, written and read (google.rpc.Status, AIP-193)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from groundwork.connect_problems import hint_of

DETAILS_KEY = "grpc-status-details-bin"
"""Trailing metadata key of the serialized google.rpc.Status."""


class FailedCall(Protocol):
    """The parts of a failed call that a client gets: ``grpc.RpcError`` of either API has them."""

    def code(self) -> grpc.StatusCode: ...  # noqa: D102
    def details(self) -> str | None: ...  # noqa: D102
    def trailing_metadata(self) -> Iterable[Any] | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that breaks its rule."""

    field: str
    """Path of the field in the request, such as ``topic_configs[3].perm``."""
    description: str
    """What is wrong with the value, and the rule."""


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

    def status(self) -> grpc.Status:
        """The error as ``abort_with_status`` of a server takes it: code, message, details in the trailers."""
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
        return rpc_status.to_status(status)

    @classmethod
    def of(cls, call: FailedCall) -> Self:
        """Reads the error of a failed call.

        Details that are missing or not readable are left empty. ``rpc_status.from_call`` gives up all details if one is
        broken, or if a proxy changed the text. Where no connection came about, the message says what to look at.
        """
        code, message = call.code(), call.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE and (hint := hint_of(message)):
            message += f"; {hint}"
        status = status_pb2.Status()
        for key, value in call.trailing_metadata() or ():
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
