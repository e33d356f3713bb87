"""Every rule on what is asked of RouteService: what is accepted at the limit, and what is refused one past it."""

from __future__ import annotations

from namesrv_api.v1 import route_service_pb2

from namesrv import limits
from namesrv.core.errors import Reason
from namesrv.grpc_api import streams
from tests.support.refusals import refuses


def test_a_batch_has_each_topic_once_with_the_place_it_was_first_in() -> None:
    request = route_service_pb2.BatchGetTopicRoutesRequest(topics=["b", "a", "b", "c"])
    assert list(streams.batch_topics(request)) == [("topics[0]", "b"), ("topics[1]", "a"), ("topics[3]", "c")]


def test_a_batch_has_1_to_1000_topics() -> None:
    most = [str(number) for number in range(limits.MAX_BATCH_TOPICS)]
    batch = route_service_pb2.BatchGetTopicRoutesRequest
    assert len(list(streams.batch_topics(batch(topics=most)))) == 1_000
    with refuses(Reason.INVALID_FIELD, match="topics: is empty"):
        list(streams.batch_topics(batch()))
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        list(streams.batch_topics(batch(topics=[*most, most[0]])))
    assert caught.value.metadata == {"name": "topics of one batch", "value": "1001", "limit": "1000"}
