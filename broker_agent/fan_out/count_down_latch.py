"""A count-down latch as java.util.concurrent has it: RocketMQ's BrokerOuterAPI joins its tasks with one."""

from __future__ import annotations

import threading


class CountDownLatch:
    """Lets one thread wait until others have finished a number of tasks."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"count {count} is negative")
        self._count = count
        self._zero = threading.Condition()

    def count_down(self) -> None:
        """Takes one off. At zero all waiters go on; the count never goes below zero."""
        with self._zero:
            self._count = max(0, self._count - 1)
            if self._count == 0:
                self._zero.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits for zero.

        Returns:
            True if the count is zero, False if the time ran out first.
        """
        with self._zero:
            return self._zero.wait_for(lambda: self._count == 0, timeout_seconds)
