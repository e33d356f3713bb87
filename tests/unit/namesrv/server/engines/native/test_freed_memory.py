"""When memory is given back after a flood."""

from __future__ import annotations

from namesrv.server.engines.native.freed_memory import CONNECTION_BYTES, LEAST_BYTES, FreedMemory

IDLE = {"connections": 10, "calls_under_way": 0, "assembling_bytes": 0, "waiting_bytes": 0}


def test_memory_is_given_back_once_after_much_has_become_free() -> None:
    seen = [IDLE, IDLE | {"connections": 10_000}, IDLE, IDLE]
    stats = iter(seen)
    memory = FreedMemory(lambda: next(stats), lambda: None)
    assert [memory.look() for _ in seen] == [False, False, True, False]


def test_a_little_that_has_become_free_is_kept() -> None:
    for more in (LEAST_BYTES - 1, LEAST_BYTES):
        stats = iter([IDLE | {"waiting_bytes": more}, IDLE])
        memory = FreedMemory(lambda: next(stats), lambda: None)  # noqa: B023 - used before the next one
        assert [memory.look(), memory.look()] == [False, more == LEAST_BYTES]


def test_half_of_what_is_under_way_must_have_gone() -> None:
    for left, expected in ((6_000, False), (4_000, True)):
        stats = iter([IDLE | {"connections": 10_000}, IDLE | {"connections": left}])
        memory = FreedMemory(lambda: next(stats), lambda: None)  # noqa: B023 - used before the next one
        assert 10_000 * CONNECTION_BYTES > 2 * LEAST_BYTES
        assert [memory.look(), memory.look()] == [False, expected]
