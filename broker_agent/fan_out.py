"""The fan-out of a call to all name servers: a thread pool, a join with a deadline, and copy-on-write results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Executor, Future
from functools import partial
from typing import TypeVar

import structlog

from broker_agent.name_server import NamesrvTarget

T = TypeVar("T")
Work = Callable[[], None]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Lane:
    """The calls to one name server, one at a time: a name server that hangs occupies one thread of the pool."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._next: tuple[Work, Future[None]] | None = None
        self._running: Future[None] | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits for a thread."""
        with self._lock:
            return self._running is not None

    def submit(self, work: Work, *, after_others: bool = True) -> Future[None] | None:
        """Runs the work in the pool.

        Args:
            after_others: Follow work that runs, and replace work that waits for that; else do nothing then.

        Returns:
            Done when the work has ended, or other work has replaced it, or the lane was closed first. None: the work is
            not accepted.
        """
        ended: Future[None] = Future()
        with self._lock:
            if self._closed or (self._running is not None and not after_others):
                return None
            replaced = self._next
            if self._running is None:
                self._running = ended
                self._pool.submit(self._run, work)
            else:
                self._next = work, ended
        if replaced is not None:
            replaced[1].set_result(None)
        return ended

    def close(self) -> Future[None] | None:
        """Starts nothing further. Returns the end of the work that still runs."""
        with self._lock:
            self._closed = True
            dropped, self._next = self._next, None
            running = self._running
        if dropped is not None:
            dropped[1].set_result(None)
        return running

    def _run(self, work: Work) -> None:
        while True:
            try:
                work()
            except Exception:  # noqa: BLE001 - the boundary of a pool thread: nobody else would ever see the error
                _log.exception("registration_task_failed")
            with self._lock:
                ended, following = self._running, self._next
                self._running, self._next = following[1] if following else None, None
            assert ended is not None, "it is set while work runs"
            ended.set_result(None)
            if following is None:
                return
            work = following[0]


def call_all(
    lanes: Mapping[NamesrvTarget, Lane],
    call: Callable[[NamesrvTarget], T | None],
    timeout_seconds: float,
    *,
    after_others: bool = False,
) -> tuple[T, ...]:
    """Calls all name servers at once and returns the answers that arrived in time, first answer first.

    The result is copied on write and final: a late answer is logged. In RocketMQ it still changes the result of
    ``registerBrokerAll``.

    Args:
        timeout_seconds: Longest wait. 0 only starts the calls.
        after_others: Follow calls that are in flight, instead of leaving their name servers out.
    """
    answers: tuple[T, ...] = ()
    is_final, writing = False, threading.Lock()

    def run(target: NamesrvTarget) -> None:
        nonlocal answers
        if (answer := call(target)) is None:
            return
        with writing:
            if not is_final:
                answers = (*answers, answer)
                return
        target.state.late_answer()
        _log.warning("late_answer_not_applied", endpoint=str(target.endpoint), answer=repr(answer))

    ends: list[Future[None]] = []
    for target, lane in lanes.items():
        if (ended := lane.submit(partial(run, target), after_others=after_others)) is not None:
            ends.append(ended)
        else:
            _log.debug("call_still_in_flight", endpoint=str(target.endpoint))
    futures.wait(ends, timeout_seconds)
    with writing:
        is_final = True
        return answers
