"""Limits on answers and on log lines, and pauses after failures."""

from __future__ import annotations

import random

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from structlog.testing import capture_logs

from namesrv_common.backoff import Backoff
from namesrv_common.client.response_limits import ResponseBudget, ResponseLimits, ResponseTooLarge, rows_in
from namesrv_common.process.logs import RateLimitedLog
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


def told(burst: int, moments: list[float]) -> list[int]:
    """How many lines were suppressed before each line, of an event that happens at these seconds."""
    clock = VirtualClock()
    log = RateLimitedLog("it_happened", 1.0, clock, burst=burst)
    with capture_logs() as lines:
        for moment in moments:
            clock.seconds = moment
            log.log(peer="p")
    assert all((line["event"], line["log_level"], line["peer"]) == ("it_happened", "warning", "p") for line in lines)
    return [line["not_told"] for line in lines]


def test_without_a_burst_one_line_stands_for_its_time() -> None:
    assert told(1, [0.0, 0.5, 0.9, 1.0, 1.1, 9.0]) == [0, 2, 1]


def test_as_many_as_the_burst_are_told_at_once_and_then_one_for_each_time() -> None:
    assert told(3, [0.0] * 10) == [0, 0, 0]
    assert told(3, [0.0] * 10 + [1.0, 1.0, 2.0]) == [0, 0, 0, 7, 1]


def test_after_a_rest_there_is_a_whole_burst_again_and_no_more() -> None:
    assert told(2, [0.0, 0.0, 100.0, 100.0, 100.0]) == [0, 0, 0, 0]


def test_the_backoff_doubles_up_to_its_longest_with_half_of_it_jitter() -> None:
    backoff = Backoff(0.2, 5.0, rng=random.Random(1))
    for failures, step in enumerate([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], start=1):
        waits = [backoff.after(failures) for _ in range(300)]
        assert step / 2 <= min(waits) < step * 0.55
        assert step * 0.95 < max(waits) <= step
        assert backoff.step_after(failures) == step
    assert backoff.after(10**6) <= 5.0


@pytest.mark.parametrize(
    ("jitter", "factor", "steps"),
    [((0.8, 1.2), 1.6, [0.2, 0.32, 0.512, 0.8192]), ((0.5, 1.5), 2.0, [0.2, 0.4, 0.8, 1.0])],
)
def test_jitter_and_growth_are_as_they_are_given_and_jitter_may_pass_the_longest_step(
    jitter: tuple[float, float], factor: float, steps: list[float]
) -> None:
    backoff, same_chance = Backoff(0.2, 1.0, jitter, rng=random.Random(7), factor=factor), random.Random(7)
    for failures, step in enumerate(steps, start=1):
        assert backoff.after(failures) == pytest.approx(step * same_chance.uniform(*jitter))
