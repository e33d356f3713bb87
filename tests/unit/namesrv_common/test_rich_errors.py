"""Errors with details survive the way over the wire; broken details never hide the error itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from namesrv_common.errors import FieldViolation
from namesrv_common.grpc_errors import DETAILS_KEY, PUSHBACK_KEY, RichError


class FailedCall:
    def __init__(self, error: RichError, trailers: Sequence[tuple[str, str | bytes]] | None) -> None:
        self._error = error
        self._trailers = trailers

    def code(self) -> grpc.StatusCode:
        return self._error.code

    def details(self) -> str:
        return self._error.message

    def trailing_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        return self._trailers


ERROR = RichError(
    grpc.StatusCode.INVALID_ARGUMENT,
    "broker.broker_id: is -1",
    reason="INVALID_FIELD",
    domain="namesrv.dev",
    metadata={"field": "broker.broker_id"},
    violations=(FieldViolation("broker.broker_id", "is -1, must not be negative"),),
    retry_after_seconds=1.5,
)


def test_an_error_comes_back_as_it_was_sent() -> None:
    assert RichError.of(FailedCall(ERROR, ERROR.status().trailing_metadata)) == ERROR


def test_a_retry_hint_is_also_in_the_trailer_that_grpc_itself_reads() -> None:
    assert dict(ERROR.status().trailing_metadata)[PUSHBACK_KEY] == "1500"
    assert PUSHBACK_KEY not in dict(replace(ERROR, retry_after_seconds=None).status().trailing_metadata)


@pytest.mark.parametrize(
    "trailers", [None, (), (("other", "x"),), ((DETAILS_KEY, b"\xff\xff"),), ((DETAILS_KEY, "text"),)]
)
def test_missing_or_broken_details_leave_code_and_message(
    trailers: Sequence[tuple[str, str | bytes]] | None,
) -> None:
    assert RichError.of(FailedCall(ERROR, trailers)) == RichError(ERROR.code, ERROR.message)


def test_an_error_shows_code_reason_and_message() -> None:
    assert str(ERROR) == "INVALID_ARGUMENT INVALID_FIELD: broker.broker_id: is -1"


def test_a_call_without_a_connection_says_what_to_look_at() -> None:
    text = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:9876: Socket closed"
    failed = RichError.of(FailedCall(RichError(grpc.StatusCode.UNAVAILABLE, text), ()))
    assert failed.message.startswith(text + "; ")
    assert "set tls_ca" in failed.message


def test_a_detail_that_cannot_be_read_leaves_the_others() -> None:
    """Before, a client of a server that is broken got an exception of protobuf instead of the error."""
    status = status_pb2.Status()
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="OVERLOADED"))
    status.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=b"\x0b")
    error = RichError.of(FailedCall(ERROR, [(DETAILS_KEY, status.SerializeToString())]))
    assert (error.code, error.reason, error.retry_after_seconds) == (ERROR.code, "OVERLOADED", None)
