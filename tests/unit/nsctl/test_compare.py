"""The comparison of name servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1.route_service_pb2 import BrokerDigest, GetRouteDigestResponse

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError, RichError
from groundwork.namesrv_client import NamesrvClient
from nsctl.commands.compare import held
from nsctl.compare import differences, reported


def test_what_is_not_in_all_or_not_the_same_differs_and_the_rest_does_not() -> None:
    assert differences([]) == differences([{"a": 1}]) == differences([{"a": 1}, {"a": 1}]) == []
    found = differences([{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9}, {"a": 1, "b": 2}])
    assert found == [("b", ("2", "9", "2")), ("c", ("3", "not there", "not there"))]


def test_a_name_server_that_says_nothing_is_not_compared() -> None:
    assert differences([{"a": 1}, None]) == []
    assert differences([{"a": 1}, None, {}], "not in force") == [("a", ("1", None, "not in force"))]


def test_content_is_compared_whole_and_shown_in_short() -> None:
    one, other = (reported([BrokerDigest(digest=b"same" + end)]) for end in (b"1", b"2"))
    [difference] = differences([one, other])
    assert difference.said == ("version 0, content 73616d65",) * 2


class Refusing:
    """A name server that does not tell its intents."""

    endpoint = Endpoint("127.0.0.1", 9876)

    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = code

    def pages(self, name: str, _request: Message) -> Iterator[Message]:
        if name == "ListIntents":
            raise CallError(self.endpoint, RichError(self.code, ""))
        yield GetRouteDigestResponse()


def test_only_where_a_permit_is_missing_intents_are_not_compared() -> None:
    refusing, failing = Refusing(grpc.StatusCode.PERMISSION_DENIED), Refusing(grpc.StatusCode.UNAVAILABLE)
    assert held(cast("NamesrvClient", refusing)) == ({}, None)
    with pytest.raises(CallError):
        held(cast("NamesrvClient", failing))
