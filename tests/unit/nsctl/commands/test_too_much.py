"""Commands that collect an answer give it up where a name server sends too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest import mock

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError
from groundwork.intake import IntakeLimits
from groundwork.namesrv_client import NamesrvClient
from nsctl.commands import compare, show


class FalseNameServer:
    """Has one topic, and sends three rows wherever it is asked."""

    endpoint = Endpoint("127.0.0.1", 9876)
    timeout_seconds = 1.0

    def stream(self, *_: object) -> Iterator[pb.StreamRouteSnapshotResponse]:
        lives = [route_data_pb2.BrokerLiveInfo(broker_addr=str(number)) for number in range(3)]
        yield pb.StreamRouteSnapshotResponse(chunk=pb.SnapshotChunk(live_brokers=lives))

    def pages(self, name: str, _request: object) -> Iterator[object]:
        if name == "ListTopics":
            yield pb.ListTopicsResponse(topics=["T"])
        else:
            yield pb.GetRouteDigestResponse(brokers=[pb.BrokerDigest(broker_id=number) for number in range(3)])

    def call(self, _name: str, _request: object) -> pb.BatchGetTopicRoutesResponse:
        routes = [pb.NamedTopicRoute(topic=str(number)) for number in range(3)]
        return pb.BatchGetTopicRoutesResponse(routes=routes)


@pytest.mark.parametrize(
    ("module", "collect", "what"),
    [
        (show, show.live_brokers, "3 live brokers"),
        (compare, compare.digests, "3 digests"),
        (show, lambda server: list(show.all_routes(server)), "BatchGetTopicRoutes has 3 rows"),
    ],
)
def test_an_answer_over_its_limit_is_an_error_that_names_the_server(
    module: Any, collect: Callable[[NamesrvClient], object], what: str
) -> None:
    limits = IntakeLimits(bytes=1 << 20, rows=2)
    with (
        mock.patch.multiple(module, MAX_BROKERS=2, STREAM_LIMITS=limits, create=True),
        pytest.raises(CallError) as caught,
    ):
        collect(cast("NamesrvClient", FalseNameServer()))
    assert str(caught.value) == f"127.0.0.1:9876: INTERNAL: sends too much: {what} so far, over the limit of 2"


class LeavingAllOut(FalseNameServer):
    """Answers for none of the topics that it is asked for."""

    def call(self, _name: str, _request: object) -> pb.BatchGetTopicRoutesResponse:
        return pb.BatchGetTopicRoutesResponse(topics_left_out=["T"])


def test_routes_are_not_asked_for_again_and_again_where_each_answer_leaves_all_out() -> None:
    with pytest.raises(CallError, match="leaves all topics of a batch out"):
        list(show.all_routes(cast("NamesrvClient", LeavingAllOut())))
