"""The calls to name servers that have no answer yet (RocketMQ: the remoting client's response table)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from broker_agent.errors import NameServerError
from groundwork.grpc_errors import RichError

SWEEP_GRACE_SECONDS = 1.0
"""How long past its deadline a call may go on before it is swept (RocketMQ: scanResponseTable)."""


@dataclass(slots=True, eq=False)
class CallInFlight:
    """One call under way."""

    deadline: float
    on_swept: Callable[[], None] | None = None
    """Told when it was swept."""
    _cancel: Callable[[], object] | None = None
    _swept: bool = False

    def begun(self, cancel: Callable[[], object]) -> None:
        """The call has begun, and this function ends it."""
        self._cancel = cancel
        if self._swept:  # swept in between: either this sees that, or the sweep finds the function that ends the call
            cancel()

    def sweep(self) -> None:
        """Ends the call."""
        self._swept = True
        if self.on_swept is not None:
            self.on_swept()
        if self._cancel is not None:
            self._cancel()


class CallsInFlight:
    """Bounds the calls under way and ends those that outlive their deadline.

    RocketMQ bounds them by a semaphore (65,535), and once a second frees what it holds for answers that never come.
    gRPC ends calls itself at their deadline. So a swept call means that gRPC's timer did not run, or that the peer
    keeps a call open that no longer counts.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        """Creates it.

        Args:
            limit: Most calls at once.
            clock: Monotonic seconds.
        """
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: set[CallInFlight] = set()
        self._refused = 0

    @property
    def count(self) -> int:
        """Calls under way."""
        with self._lock:
            return len(self._calls)

    @property
    def refused(self) -> int:
        """Calls that were not made because too many were under way."""
        with self._lock:
            return self._refused

    @contextmanager
    def enter(self, deadline: float) -> Iterator[CallInFlight]:
        """Counts a call for as long as the context lasts.

        Args:
            deadline: When it ends at the latest, by the injected clock.

        Raises:
            NameServerError: Too many are under way (RocketMQ: RemotingTooMuchRequestException).
        """
        call = CallInFlight(deadline)
        with self._lock:
            if len(self._calls) >= self._limit:
                self._refused += 1
                message = f"{self._limit} calls are under way, which is as many as may be"
                raise NameServerError(RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, "TOO_MANY_CALLS"))
            self._calls.add(call)
        try:
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)

    def sweep(self) -> int:
        """Ends the calls that are past their deadline; returns how many. Called once a second."""
        now = self._clock()
        with self._lock:
            overdue = [call for call in self._calls if call.deadline + SWEEP_GRACE_SECONDS < now]
            self._calls.difference_update(overdue)
        for call in overdue:
            call.sweep()
        return len(overdue)
