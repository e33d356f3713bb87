"""Limits on answers and on log lines, and pauses after failures."""

from __future__ import annotations

import random
from typing import Any

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


@pytest.mark.parametrize(
    ("burst", "moments", "suppressed"),
    [
        (1, [0.0, 0.5, 0.9, 1.0, 1.1, 9.0], [0, 2, 1]),
        (3, [0.0] * 10, [0, 0, 0]),
        (3, [0.0] * 10 + [1.0, 1.0, 2.0], [0, 0, 0, 7, 1]),
        (2, [0.0, 0.0, 100.0, 100.0, 100.0], [0, 0, 0, 0]),
    ],
    ids=["no burst", "a burst", "after a burst", "a burst after a rest"],
)
def test_a_line_stands_for_its_time_and_says_how_many_before_it_were_suppressed(
    burst: int, moments: list[float], suppressed: list[int]
) -> None:
    clock = VirtualClock()
    log = RateLimitedLog("it_happened", 1.0, clock, burst=burst)
    with capture_logs() as lines:
        for moment in moments:
            clock.seconds = moment
            log.log(peer="p")
    assert all((line["event"], line["log_level"], line["peer"]) == ("it_happened", "warning", "p") for line in lines)
    assert [line["not_told"] for line in lines] == suppressed


@pytest.mark.parametrize(
    ("options", "jitter", "steps"),
    [
        ({}, (0.5, 1.0), [0.2, 0.4, 0.8, 1.0, 1.0]),
        ({"jitter": (0.8, 1.2), "factor": 1.6}, (0.8, 1.2), [0.2, 0.32, 0.512, 0.8192, 1.0]),
    ],
    ids=["default", "given"],
)
def test_the_backoff_grows_up_to_its_longest_step_with_jitter(
    options: dict[str, Any], jitter: tuple[float, float], steps: list[float]
) -> None:
    backoff, same_chance = Backoff(0.2, 1.0, rng=random.Random(7), **options), random.Random(7)
    for failures, step in enumerate(steps, start=1):
        assert backoff.step_after(failures) == pytest.approx(step)
        assert backoff.after(failures) == pytest.approx(step * same_chance.uniform(*jitter))
    assert backoff.step_after(10**6) == 1.0
