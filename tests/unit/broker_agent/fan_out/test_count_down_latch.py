from __future__ import annotations

import threading

import pytest

from broker_agent.concurrency import CountDownLatch


def test_a_waiter_goes_on_when_the_last_task_has_counted_down() -> None:
    latch = CountDownLatch(3)
    tasks = [threading.Thread(target=latch.count_down) for _ in range(3)]
    for task in tasks:
        task.start()
    assert latch.wait(10)
    for task in tasks:
        task.join(10)


def test_a_waiter_goes_on_without_the_tasks_when_its_time_is_over() -> None:
    latch = CountDownLatch(2)
    latch.count_down()
    assert not latch.wait(0)


def test_a_latch_of_zero_holds_nobody_up() -> None:
    assert CountDownLatch(0).wait(0)


def test_counting_below_zero_leaves_it_open() -> None:
    latch = CountDownLatch(1)
    latch.count_down()
    latch.count_down()
    assert latch.wait(0)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="count -1 is negative"):
        CountDownLatch(-1)
