"""The sync of one name server with the broker, and the retries of calls to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import grpc
import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception

from broker_agent.errors import NameServerError
from broker_agent.name_server import NamesrvTarget, RegisterBrokerResult
from broker_agent.name_server_status import Call, next_call
from broker_agent.registration import Registration
from broker_agent.timing import Timing
from namesrv_common.backoff import Backoff

FIRST_WAIT_SECONDS = 0.1
"""Longest wait after the first failure: a lost connection is often back at once."""
LONGEST_WAIT_SECONDS = 2.0
"""Longest wait between two attempts, so that several fit into a registration's 6 s."""

HOLDER_SECONDS = 1.0
"""Time to ask who holds the broker id. It is short, because the answer only warns of two agents with one id."""

T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later.

    A lost channel counts: by then another one is open. A name server that is shutting down says so, and is not
    asked again. Other refusals are final, too.
    """
    if not isinstance(error, NameServerError):
        return False
    rich = error.rich
    if rich.code is grpc.StatusCode.UNAVAILABLE:
        return rich.reason != "SHUTTING_DOWN"
    return rich.reason in {"CHANNEL_GONE", "OVERLOADED"}


class CallRetries:
    """Retries with exponential backoff and jitter, inside the deadline of the whole."""

    def __init__(self, timing: Timing, stopping: threading.Event, sleep: Callable[[float], None] | None = None) -> None:
        """Creates it.

        Args:
            stopping: Once set, waits end and nothing is tried again.
            sleep: How to wait; by default until ``stopping`` is set.
        """
        self._timing = timing
        self._backoff = Backoff(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, rng=timing.rng)
        self._stopping = stopping
        self._sleep = sleep or self._sleep_until_stopping

    def run(self, call: Callable[[], T], deadline: float) -> T:
        """Calls until it succeeds, cannot succeed, or the next attempt would begin after the deadline.

        Args:
            deadline: By the injected clock.

        Raises:
            NameServerError: The last attempt's error.
        """

        def out_of_time(state: RetryCallState) -> bool:
            return self._stopping.is_set() or self._timing.clock() + state.upcoming_sleep >= deadline

        retrying = Retrying(
            retry=retry_if_exception(is_retryable), wait=self._wait, stop=out_of_time, sleep=self._sleep, reraise=True
        )
        return retrying(call)

    def _sleep_until_stopping(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_for = error.rich.retry_after_seconds if isinstance(error, NameServerError) else None
        return max(self._backoff(state), asked_for or 0.0)


class RegistrationSync:
    """Brings one name server up to date, in a thread of the pool."""

    def __init__(self, timing: Timing, retries: CallRetries) -> None:
        self._timing = timing
        self._retries = retries

    def run(
        self, target: NamesrvTarget, wanted: Registration, deadline: float, *, force: bool
    ) -> RegisterBrokerResult | None:
        """Registers the broker with the name server if that is needed.

        Args:
            deadline: By the injected clock.
            force: Send the whole table without a version query.

        Returns:
            The answer; None if the name server holds this already, refuses it, or failed.
        """
        try:
            return self._run(target, wanted, deadline, force=force)
        except NameServerError as error:
            _log.debug("register_failed", endpoint=str(target.endpoint), error=str(error))
            return None

    def _run(
        self, target: NamesrvTarget, wanted: Registration, deadline: float, *, force: bool
    ) -> RegisterBrokerResult | None:
        def following() -> Call:
            return next_call(target.state.known, wanted, self._timing.clock(), force=force)

        call = following()
        if call is Call.QUERY_VERSION:
            if not self._need_register(target, wanted, deadline):
                return None
            call = following()
        if call is Call.SEND_CHANGES:
            held = target.state.known.held
            try:
                return self._retries.run(lambda: target.register(wanted, deadline, held), deadline)
            except NameServerError as error:
                if error.rich.reason != "NEED_FULL_REGISTRATION":
                    raise
            call = following()
        if call is Call.NONE or (call is Call.FIND_HOLDER and not self._may_take_id(target, wanted, deadline)):
            return None
        return self._retries.run(lambda: target.register(wanted, deadline), deadline)

    def _need_register(self, target: NamesrvTarget, wanted: Registration, deadline: float) -> bool:
        """Whether the name server holds another version, or did not answer (RocketMQ: needRegister)."""
        now = self._timing.clock()
        try:
            # Half of the time, so that enough is left for the registration itself if the answer never comes.
            return target.need_register(wanted, now + (deadline - now) / 2)
        except NameServerError as error:
            _log.debug("query_data_version_failed", endpoint=str(target.endpoint), error=str(error))
            return True

    def _may_take_id(self, target: NamesrvTarget, wanted: Registration, deadline: float) -> bool:
        """Whether the broker id is free, or this registration may take it from another address.

        An agent that starts, changes its role or opens a channel takes the id. A periodic round leaves it to the other
        agent and logs that.
        """
        broker = wanted.broker.identity()
        claims = target.state.known.claims_id
        try:
            holder = target.holder_of_id(broker, min(deadline, self._timing.clock() + HOLDER_SECONDS))
        except NameServerError as error:
            _log.debug("holder_not_known", endpoint=str(target.endpoint), error=str(error))
            return True
        if holder is None or holder == broker.broker_addr:
            return True
        if claims:
            target.state.broker_id_replaced(holder)
        else:
            target.state.broker_id_taken(holder)
        return claims
