"""DaemonExecutor: calls are made in threads, and the process never waits for one of them at its end."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from namesrv_common.process.daemon_executor import DaemonExecutor


def test_results_and_errors_come_back_and_threads_have_names() -> None:
    with DaemonExecutor(2, "worker") as executor:
        assert executor.submit(divmod, 7, 2).result(10) == (3, 1)
        assert isinstance(executor.submit(divmod, 7, 0).exception(10), ZeroDivisionError)
        assert executor.submit(lambda: threading.current_thread().name).result(10) in {"worker_0", "worker_1"}


def test_after_its_end_it_takes_no_call_and_has_made_those_before() -> None:
    executor = DaemonExecutor(1, "worker")
    before = executor.submit(sum, [1, 2])
    executor.shutdown()
    assert before.result(0) == 3
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(sum, [])
    executor.shutdown()


def test_calls_that_wait_can_be_cancelled_at_the_end() -> None:
    go_on, begun = threading.Event(), threading.Event()
    executor = DaemonExecutor(1, "worker")

    def wait() -> bool:
        begun.set()
        return go_on.wait(10)

    under_way = executor.submit(wait)
    assert begun.wait(10)
    waiting = executor.submit(sum, [])
    executor.shutdown(wait=False, cancel_futures=True)
    go_on.set()
    assert under_way.result(10)
    with pytest.raises(CancelledError):
        waiting.result(10)
