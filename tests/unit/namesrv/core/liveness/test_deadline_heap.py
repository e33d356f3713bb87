"""DeadlineHeap: cheap renewals, exact expiry, bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from namesrv.core.deadline_heap import SLICE, DeadlineHeap
from namesrv.core.slices import run_sync


def overdue(heap: DeadlineHeap[str], now: float) -> list[str]:
    return run_sync(heap.overdue(now))


def test_a_key_is_overdue_only_after_its_timeout_has_passed() -> None:
    heap: DeadlineHeap[str] = DeadlineHeap()
    heap.heard("a", 0.0, 10.0)
    assert overdue(heap, 10.0) == []
    assert overdue(heap, 10.5) == ["a"]


def test_an_overdue_key_comes_up_again_until_it_is_forgotten() -> None:
    heap: DeadlineHeap[str] = DeadlineHeap()
    heap.heard("a", 0.0, 10.0)
    assert overdue(heap, 11.0) == ["a"]
    assert overdue(heap, 11.0) == ["a"]
    heap.forget("a")
    assert overdue(heap, 100.0) == []


def test_a_million_renewals_do_not_grow_the_heap() -> None:
    heap: DeadlineHeap[str] = DeadlineHeap()
    for number in range(100_000):
        heap.heard("a", float(number), 10.0)
        heap.heard("b", float(number), 10.0 if number % 2 else 1_000.0)
    assert len(heap._heap) < 200


def test_keys_that_come_and_go_do_not_grow_the_heap() -> None:
    heap: DeadlineHeap[str] = DeadlineHeap()
    for number in range(10_000):
        heap.heard(str(number), 0.0, 1_000.0)
        heap.forget(str(number))
    assert len(heap._heap) < 200
    assert len(heap._scheduled) < 200


def test_a_search_that_is_given_up_half_way_loses_no_key() -> None:
    heap: DeadlineHeap[str] = DeadlineHeap()
    for number in range(2 * SLICE):
        heap.heard(str(number), 0.0, 10.0)
    search = heap.overdue(11.0)
    next(search)
    search.close()
    assert len(overdue(heap, 11.0)) == 2 * SLICE


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["heard", "forget", "overdue"]), st.sampled_from("abc"), st.integers(0, 20), st.integers(1, 30)
    ),
    max_size=60,
)


@given(_EVENTS)
def test_it_agrees_with_a_dictionary_of_deadlines(events: list[tuple[str, str, int, int]]) -> None:
    heap: DeadlineHeap[str] = DeadlineHeap()
    model: dict[str, float] = {}
    now = 0.0
    for kind, key, pause, timeout in events:
        now += pause
        if kind == "heard":
            heap.heard(key, now, float(timeout))
            model[key] = now + timeout
        elif kind == "forget":
            heap.forget(key)
            model.pop(key, None)
        else:
            assert sorted(overdue(heap, now)) == sorted(key for key, due in model.items() if due < now)
        assert all(heap.is_overdue(key, now) == (model[key] < now) for key in model)
        assert len(heap) == len(model)


def test_it_is_known_how_late_the_last_search_found_the_most_overdue_key() -> None:
    heap: DeadlineHeap[str] = DeadlineHeap()
    heap.heard("a", 0.0, 10.0)
    heap.heard("b", 0.0, 5.0)
    overdue(heap, 5.0)
    assert heap.longest_overdue == 0.0
    overdue(heap, 12.0)
    assert heap.longest_overdue == 7.0
    heap.forget("b")
    overdue(heap, 12.0)
    assert heap.longest_overdue == 2.0
