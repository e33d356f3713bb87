"""GO_AWAY: the answer of a server that ends, to clients that know it."""

from __future__ import annotations

import pytest

from namesrv.core.errors import Reason, Refused
from namesrv.error_codes import ResponseCode
from namesrv.remoting.connection import refusal
from namesrv.remoting.wire import GO_AWAY, request_of
from tests.support.sent_frames import frames_in
from tests.unit.namesrv.remoting.frames import frame, json_header


def test_the_engine_has_the_answer_with_each_encoding_of_a_header() -> None:
    told = [one for encoded in GO_AWAY.answers for one in frames_in(encoded)]
    assert [one.encoding for one in told] == [0, 1]
    assert {(read.code, read.is_answer) for read in map(request_of, told)} == {(ResponseCode.GO_AWAY, True)}


@pytest.mark.parametrize(
    ("version", "code"), [(475, ResponseCode.SYSTEM_ERROR), (476, ResponseCode.GO_AWAY), (513, ResponseCode.GO_AWAY)]
)
def test_a_request_that_a_frozen_server_refuses_has_the_code_that_its_client_knows(version: int, code: int) -> None:
    (asked,) = frames_in(frame(json_header(version=version)))
    (told,) = frames_in(refusal(request_of(asked), Refused(Reason.SHUTTING_DOWN, "the name server ends")))
    assert request_of(told).code == code
