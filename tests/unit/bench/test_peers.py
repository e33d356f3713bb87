"""What the comparison with other name servers sends and says, and what the guard lets pass."""

from __future__ import annotations

import os
import time

from bench import guard
from bench.figures import Sample
from bench.load import cpu_seconds
from bench.peers.servers import VARIANTS, all_servers, askable_servers, described

COSTS = {guard.REGISTRATION: 0.3, guard.HIT: 1.2}


def ratios(factor: float) -> list[guard.Ratio]:
    """So many times what a call costs, measured in three rounds."""
    return [guard.Ratio(call, (cost * factor,) * 3, (1.0,) * 3) for call, cost in COSTS.items()]


def test_the_guard_lets_pass_what_costs_what_it_did_and_a_quarter_more() -> None:
    assert guard.judge(COSTS, ratios(1.0)) == []
    assert guard.judge(COSTS, ratios(1.25)) == []


def test_the_guard_names_every_call_that_costs_twice_as_much() -> None:
    findings = guard.judge(COSTS, ratios(2.0))
    assert len(findings) == 2
    assert "one unchanged registration costs 0.6 times the naive server's, and may cost 0.45" in findings[0]
    assert "one hit costs 2.4 times the null server's, and may cost 1.8" in findings[1]
    assert findings[1].endswith("rounds 2.4, 2.4, 2.4 beside 1, 1, 1")


def test_each_call_is_compared_with_the_server_of_its_own_kind_in_the_same_round() -> None:
    cpu = "ms CPU per 1,000"
    samples = [
        Sample(server, call, cpu, value * round_number)
        for round_number in (1, 2)
        for server, call, value in (
            ("naive", guard.REGISTRATION, 10.0),
            ("native", guard.REGISTRATION, 2.0),
            ("null", guard.HIT, 4.0),
            ("native", guard.HIT, 6.0),
        )
    ]
    ratios = sorted(guard.ratios_of(samples))
    assert ratios == [
        guard.Ratio(guard.HIT, (6.0, 12.0), (4.0, 8.0)),
        guard.Ratio(guard.REGISTRATION, (2.0, 4.0), (10.0, 20.0)),
    ]
    assert [ratio.value for ratio in ratios] == [1.5, 0.2]


def test_rounds_that_neighbours_disturbed_do_not_trip_the_guard() -> None:
    assert guard.judge(COSTS, [guard.Ratio(guard.HIT, (1.2, 6.0, 2.5), (1.4, 1.0, 1.3))]) == []


def test_a_call_that_costs_twice_as_much_trips_the_guard_through_disturbed_rounds_of_the_other_server() -> None:
    [finding] = guard.judge(COSTS, [guard.Ratio(guard.HIT, (2.4, 3.0, 2.6), (4.0, 1.0, 5.0))])
    assert "costs 2.4 times" in finding


def test_every_call_has_costs_to_be_held_to() -> None:
    assert guard.known_costs().keys() == {guard.REGISTRATION, guard.HIT, guard.MISS}


def test_processor_time_is_counted_finer_than_the_kernel_s_ticks() -> None:
    before = cpu_seconds([os.getpid()])
    ended = time.process_time() + 0.001
    while time.process_time() < ended:
        pass
    assert before < cpu_seconds([os.getpid()]) <= time.process_time()


def test_variants_of_native_are_measured_only_if_they_are_asked_for() -> None:
    assert not set(askable_servers()) - set(all_servers()) - {f"native{variant}" for variant in VARIANTS}
    assert not {f"native{variant}" for variant in VARIANTS} & set(all_servers())
    assert described("native+no-cache") == "namesrv serve --cache-bytes 0"
    assert described("native+tls") == "namesrv serve with TLS"
