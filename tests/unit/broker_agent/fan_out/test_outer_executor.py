from __future__ import annotations

import threading

from broker_agent.concurrency import OuterExecutor
from tests.support.patience import TIMEOUT


def test_work_beyond_threads_and_queue_is_refused_and_taken_again_later() -> None:
    executor, let_go = OuterExecutor(1, 1), threading.Event()

    def work() -> None:
        assert let_go.wait(TIMEOUT)

    running = [executor.submit(work) for _ in range(2)]
    assert all(running)
    assert executor.submit(lambda: None) is None
    let_go.set()
    for future in running:
        assert future is not None
        future.result(TIMEOUT)
    again = executor.submit(lambda: None)
    assert again is not None
    again.result(TIMEOUT)
    executor.shutdown(wait=True)
    assert executor.submit(lambda: None) is None
