"""Lines that peers cause: a few are all told, a flood is told of now and then, and nothing is lost from the count."""

from __future__ import annotations

from structlog.testing import capture_logs

from namesrv_common.process.rate_limited_log import RateLimitedLog
from tests.support.virtual_clock import VirtualClock


def told(burst: int, moments: list[float]) -> list[int]:
    """How many were not told before each line, of an event that happens at these seconds."""
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
