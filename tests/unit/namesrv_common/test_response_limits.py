"""The account of an answer that comes in several messages: bytes, rows and time."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.response_limits import ResponseBudget, ResponseLimits, ResponseTooLarge, rows_in
from tests.support.virtual_clock import VirtualClock

LIMITS = ResponseLimits(bytes=1_000, rows=10, seconds=60.0)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def budget(clock: VirtualClock) -> ResponseBudget:
    return ResponseBudget("a snapshot", LIMITS, clock.monotonic)


def test_an_answer_at_each_limit_is_accepted(budget: ResponseBudget, clock: VirtualClock) -> None:
    budget.take(400, 4)
    clock.advance(60.0)
    budget.take(600, 6)
    assert (budget.bytes, budget.rows) == (1_000, 10)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ((1_001, 10), "1,001 bytes so far, over the limit of 1,000"),
        ((1_000, 11), "11 rows so far, over the limit of 10"),
    ],
)
def test_an_answer_over_a_limit_is_refused(budget: ResponseBudget, message: tuple[int, int], problem: str) -> None:
    with pytest.raises(ResponseTooLarge, match=f"^a snapshot has {problem}$"):
        budget.take(*message)


def test_an_answer_that_takes_too_long_is_refused(budget: ResponseBudget, clock: VirtualClock) -> None:
    clock.advance(1_000.0)  # nothing has come yet: the time before counts elsewhere
    budget.take(1)
    clock.advance(61.0)
    with pytest.raises(ResponseTooLarge, match=r"^a snapshot has 61 seconds so far, over the limit of 60$"):
        budget.take(1)


def test_an_account_that_begins_anew_has_all_limits_again(budget: ResponseBudget, clock: VirtualClock) -> None:
    budget.take(1_000, 10)
    budget.begin_anew()
    clock.advance(61.0)
    budget.take(1_000, 10)


def test_rows_are_the_elements_of_all_lists_but_those_within_elements() -> None:
    topics = [pb.TopicQueues(topic="T", queue_datas=[route_data_pb2.QueueData()] * 3)] * 2
    clusters = [route_data_pb2.ClusterData(cluster_name="c")]
    message = pb.StreamRouteSnapshotResponse(chunk=pb.SnapshotChunk(topics=topics, clusters=clusters))
    assert rows_in(message) == 3
    assert rows_in(pb.ListTopicsResponse(topics=["T1", "T2"], next_page_token="n")) == 2
    assert rows_in(pb.GetTopicRouteResponse()) == 0
