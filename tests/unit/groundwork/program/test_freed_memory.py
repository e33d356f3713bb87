"""When memory is given back after a flood."""

from __future__ import annotations

from groundwork.freed_memory import (
    CONNECTION_BYTES,
    LEAST_AGAIN_LOOKS,
    LEAST_BYTES,
    LOOK_SECONDS,
    MOST_AGAIN_LOOKS,
    MOST_PAUSE_SECONDS,
    TRIES,
    GrownProcess,
    resident_bytes,
    unaccounted,
)

IDLE = {"connections": 0, "calls_under_way": 0, "request_bytes": 0, "waiting_bytes": 0}
BASE = 100 * 1024 * 1024


class Process:
    """A process of some size, of which some can be given back, with the gauges of a listener."""

    def __init__(self) -> None:
        self.stats = IDLE
        self.resident, self.free, self.trims = BASE, 0, 0
        self.memory = GrownProcess(lambda: unaccounted(lambda: self.stats, lambda: self.resident), self._trim)

    def _trim(self) -> None:
        self.resident, self.free, self.trims = self.resident - self.free, 0, self.trims + 1


def test_memory_is_given_back_once_after_a_flood_that_nobody_saw() -> None:
    process = Process()
    process.memory.look()
    assert process.trims == 0
    process.resident = BASE + 5 * LEAST_BYTES
    process.free = 5 * LEAST_BYTES
    for _ in range(2):
        process.memory.look()
    assert (process.resident, process.trims) == (BASE, 1)


def test_a_little_growth_is_kept() -> None:
    for more, trims in ((LEAST_BYTES // 2, 0), (2 * LEAST_BYTES, 1)):
        process = Process()
        process.resident = BASE + more
        process.memory.look()
        assert process.trims == trims


def test_what_is_under_way_accounts_for_growth() -> None:
    process = Process()
    process.stats = IDLE | {"connections": 10_000, "waiting_bytes": 4 * LEAST_BYTES}
    process.resident = BASE + 10_000 * CONNECTION_BYTES + 4 * LEAST_BYTES
    process.memory.look()
    assert process.trims == 0
    process.stats = IDLE
    process.memory.look()
    assert process.trims == 1


def test_needed_memory_is_tried_again_when_more_has_come() -> None:
    process = Process()
    process.resident += 2 * LEAST_BYTES
    for _ in range(TRIES + 1):
        process.memory.look()
    assert process.trims == TRIES
    process.resident += LEAST_BYTES
    process.memory.look()
    assert process.trims == TRIES + 1


def test_after_it_has_shrunk_by_itself_growth_counts_from_there() -> None:
    process = Process()
    process.resident = BASE - LEAST_BYTES
    process.memory.look()
    assert process.trims == 0
    process.resident = BASE
    process.memory.look()
    assert process.trims == 1


def test_the_size_of_this_process_is_told() -> None:
    assert resident_bytes() > 1024 * 1024


def test_memory_is_given_back_although_the_flood_lasts_for_some_looks() -> None:
    process = Process()
    assert process.memory.look() == LOOK_SECONDS
    process.resident += 5 * LEAST_BYTES
    pauses = [process.memory.look() for _ in range(TRIES - 1)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST_PAUSE_SECONDS
    process.free = 5 * LEAST_BYTES
    assert process.memory.look() == LOOK_SECONDS
    assert process.resident == BASE


def test_memory_that_is_needed_is_left_alone_after_some_tries() -> None:
    process = Process()
    process.resident += 5 * LEAST_BYTES
    for _ in range(10 * TRIES):
        process.memory.look()
    assert process.trims == TRIES


def test_what_a_flood_leaves_that_lasted_longer_than_all_tries_is_given_back() -> None:
    process = Process()
    process.resident += 5 * LEAST_BYTES
    for _ in range(TRIES):
        process.memory.look()
    process.free = 5 * LEAST_BYTES
    for _ in range(LEAST_AGAIN_LOOKS):
        process.memory.look()
    assert process.resident == BASE


def test_needed_memory_is_tried_more_and_more_seldom() -> None:
    process = Process()
    process.resident += 5 * LEAST_BYTES
    for _ in range(TRIES + 10 * MOST_AGAIN_LOOKS):
        process.memory.look()
    assert TRIES < process.trims <= TRIES + 10 + 4
