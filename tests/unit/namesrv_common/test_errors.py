"""Errors of calls: their fields, their details, and hints for those that connect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from namesrv.core.errors import suppress_refusals
from namesrv_common.errors import (
    MAX_VIOLATIONS,
    CommonReason,
    FieldProblems,
    FieldViolation,
    Refused,
    invalid_field,
    limit_exceeded,
    not_durable,
)
from namesrv_common.grpc_errors import DETAILS_KEY, PUSHBACK_KEY, RichError
from tests.support.refusals import refuses


def check(problems: FieldProblems, fields: Iterable[str]) -> None:
    for field in fields:
        with problems:
            raise invalid_field(field, "is bad")
    problems.raise_any()


def test_only_the_named_reasons_are_passed_over() -> None:
    def fail(error: Refused) -> None:
        with suppress_refusals(CommonReason.INVALID_FIELD):
            raise error

    fail(invalid_field("a", "is bad"))
    with refuses(CommonReason.NOT_DURABLE):
        fail(not_durable("the disk is full"))


def test_problems_of_fields_are_listed_and_other_errors_raised_at_once() -> None:
    check(FieldProblems(), [])
    problems, fields = FieldProblems(), ("part.a", "part.b", "c")
    with problems:
        check(FieldProblems(), fields[:2])
    with refuses(CommonReason.INVALID_FIELD, match=r"^part\.a: is bad \(and 2 more\)$") as caught:
        check(problems, fields[2:])
    assert caught.value.violations == tuple(FieldViolation(field, "is bad") for field in fields)
    assert caught.value.metadata == {"field": "part.a"}
    for other in (limit_exceeded("things", 2, 1), ValueError("a defect")):
        with pytest.raises(type(other)) as raised, FieldProblems():
            raise other
        assert raised.value is other


def test_a_request_of_very_many_problems_is_refused_when_a_hundred_are_found() -> None:
    checked: list[str] = []

    def fields() -> Iterable[str]:
        for number in range(1_000):
            checked.append(f"f{number}")
            yield f"f{number}"

    with refuses(CommonReason.INVALID_FIELD) as caught:
        check(FieldProblems(), fields())
    assert len(caught.value.violations) == len(checked) == MAX_VIOLATIONS


def read(error: RichError, trailers: Any) -> RichError:
    """What a client reads from a call that failed with code and message of an error, and these trailers."""
    return RichError.of(grpc.aio.AioRpcError(error.code, grpc.aio.Metadata(), trailers, error.message, None))


ERROR = RichError(
    grpc.StatusCode.INVALID_ARGUMENT,
    "broker.broker_id: is -1",
    reason="INVALID_FIELD",
    domain="namesrv.dev",
    metadata={"field": "broker.broker_id"},
    violations=(FieldViolation("broker.broker_id", "is -1, must not be negative"),),
    retry_after_seconds=1.5,
)


def test_an_error_comes_back_as_sent_with_the_pushback_that_grpc_reads() -> None:
    assert read(ERROR, ERROR.trailers()) == ERROR
    assert str(ERROR) == "INVALID_ARGUMENT INVALID_FIELD: broker.broker_id: is -1"
    assert dict(ERROR.trailers())[PUSHBACK_KEY] == "1500"
    assert PUSHBACK_KEY not in dict(replace(ERROR, retry_after_seconds=None).trailers())


def test_missing_or_broken_details_leave_code_message_and_the_other_details() -> None:
    bare = RichError(ERROR.code, ERROR.message)
    for trailers in (None, (), (("other", "x"),), ((DETAILS_KEY, b"\xff\xff"),), ((DETAILS_KEY, "text"),)):
        assert read(ERROR, trailers) == bare
    status = status_pb2.Status()
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="OVERLOADED"))
    status.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=b"\x0b")
    assert read(ERROR, [(DETAILS_KEY, status.SerializeToString())]) == replace(bare, reason="OVERLOADED")


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
    "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK": "compare the clocks",
    "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: odd": "see the server's log",
    "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.": "other names",
    "Failed parsing HTTP/2: Expected SETTINGS frame": "look at the port",
}


def told_about(text: str) -> str:
    return read(RichError(grpc.StatusCode.UNAVAILABLE, text), ()).message


@pytest.mark.parametrize("text", HINTS)
def test_a_connection_that_did_not_come_about_says_what_to_look_at(text: str) -> None:
    told = told_about(CONNECTING + text)
    assert told.startswith(f"{CONNECTING}{text}; ")
    assert HINTS[text] in told


@pytest.mark.parametrize("text", ["Socket closed", "the name server is shutting down", CONNECTING + "refused", ""])
def test_about_other_failures_nothing_is_said(text: str) -> None:
    assert told_about(text) == text
