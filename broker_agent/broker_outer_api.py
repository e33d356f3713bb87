"""The broker's calls to all its name servers at once (RocketMQ: BrokerOuterAPI)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import structlog
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from broker_agent.call_retries import CallRetries
from broker_agent.copy_on_write_list import CopyOnWriteList
from broker_agent.count_down_latch import CountDownLatch
from broker_agent.errors import NameServerError
from broker_agent.namesrv_target import NamesrvTarget, RegisterBrokerResult
from broker_agent.target_lane import TargetLane, Work
from broker_agent.timing import Timing

CLOSE_SECONDS = 2.0
"""Time for the tasks in the pool to end once their connections have been closed."""

Answer = TypeVar("Answer")
Results = tuple[RegisterBrokerResult, ...]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BrokerOuterAPI:
    """Fans each call out to the name servers: a pool, one task each, a latch, results in a copy-on-write list.

    What a caller gets never changes afterwards: an answer that comes after the latch has let the caller go is logged
    and not applied. RocketMQ asks all name servers whether the table changed, waits for all of them, and then sends it
    to all; here each task asks its own name server and registers only if that one said so or did not answer, so that
    a name server that hangs delays no other's registration.
    """

    def __init__(self, targets: Sequence[NamesrvTarget], timing: Timing, retries: CallRetries | None = None) -> None:
        """Creates it.

        Args:
            targets: The name servers.
            timing: Clock and randomness.
            retries: How calls are tried again; by default with real waits that end when this is closed.
        """
        self._timing = timing
        self._stopping = threading.Event()
        self._retries = retries or CallRetries(timing, self._stopping)
        # A lane never has more than one task, so nothing ever waits in the pool's queue.
        self._pool = ThreadPoolExecutor(max_workers=len(targets), thread_name_prefix="broker-agent-outer")
        self._lanes = {target: TargetLane(self._pool) for target in targets}

    def register_broker_all(
        self, registration: pb.RegisterBrokerRequest, *, force: bool, timeout_seconds: float
    ) -> Results:
        """Registers the broker with every name server that needs it (RocketMQ: registerBrokerAll).

        A name server whose last call has not ended yet is left out.

        Args:
            registration: The full table; names no channel.
            force: Send it without asking first whether it changed.
            timeout_seconds: When to return at the latest, and when the last call ends.

        Returns:
            The answers in the order in which they came. Of name servers that failed, or hold the table already: none.
        """
        deadline = self._timing.clock() + timeout_seconds
        task = partial(self._register, registration=registration, force=force, deadline=deadline)
        return self._fan_out(task, TargetLane.offer, timeout_seconds)

    def register_broker(
        self,
        target: NamesrvTarget,
        registration: pb.RegisterBrokerRequest,
        *,
        timeout_seconds: float,
        on_results: Callable[[Results], None],
    ) -> None:
        """Registers the broker with one name server that wants it, in the background and as soon as it can be.

        If a call to it is in flight, this follows it, and does nothing if that call was the registration wanted.

        Args:
            target: The name server.
            registration: The full table; names no channel.
            timeout_seconds: Time for the registration, from its beginning.
            on_results: Gets the answer, in a thread of the pool. Not called if it failed.
        """

        def work() -> None:
            if not target.registration_wanted:
                return
            deadline = self._timing.clock() + timeout_seconds
            result = self._register(target, registration=registration, force=True, deadline=deadline)
            if result is not None:
                on_results((result,))

        if not self._stopping.is_set():
            self._lanes[target].put(work)

    def unregister_broker_all(self, broker: route_data_pb2.BrokerIdentity, *, timeout_seconds: float) -> None:
        """Removes the broker from every name server; registers nothing from now on (RocketMQ: unregisterBrokerAll).

        In parallel, where RocketMQ takes one name server after the other. Failures are logged: the end of the
        channel, which follows, removes the broker as well.
        """
        self._stopping.set()
        deadline = self._timing.clock() + timeout_seconds

        def task(target: NamesrvTarget) -> None:
            try:
                target.unregister(broker, deadline)
            except NameServerError as error:
                _log.warning("unregister_failed", endpoint=str(target.endpoint), error=str(error))

        self._fan_out(task, TargetLane.put, timeout_seconds)

    def close(self) -> None:
        """Ends the pool. The targets must have been closed, so that no call is left to wait for."""
        self._stopping.set()
        running = [future for lane in self._lanes.values() if (future := lane.close()) is not None]
        _, stuck = wait(running, CLOSE_SECONDS)
        self._pool.shutdown(wait=not stuck, cancel_futures=True)

    def _fan_out(
        self,
        task: Callable[[NamesrvTarget], Answer | None],
        enter: Callable[[TargetLane, Work], bool],
        timeout_seconds: float,
    ) -> tuple[Answer, ...]:
        latch = CountDownLatch(len(self._lanes))
        answers: CopyOnWriteList[Answer] = CopyOnWriteList()

        def run(target: NamesrvTarget) -> None:
            try:
                answer = task(target)
                if answer is not None and not answers.append(answer):
                    _log.warning("late_answer_not_applied", endpoint=str(target.endpoint), answer=repr(answer))
            finally:
                latch.count_down()

        for target, lane in self._lanes.items():
            if not enter(lane, partial(run, target)):
                _log.debug("call_still_in_flight", endpoint=str(target.endpoint))
                latch.count_down()
        latch.wait(timeout_seconds)
        return answers.close()

    def _register(
        self, target: NamesrvTarget, *, registration: pb.RegisterBrokerRequest, force: bool, deadline: float
    ) -> RegisterBrokerResult | None:
        if self._stopping.is_set():
            return None
        if not (force or target.registration_wanted or self._need_register(target, registration, deadline)):
            return None
        try:
            return self._retries.run(lambda: target.register(registration, deadline), deadline)
        except NameServerError as error:
            _log.debug("register_failed", endpoint=str(target.endpoint), error=str(error))
            return None

    def _need_register(self, target: NamesrvTarget, registration: pb.RegisterBrokerRequest, deadline: float) -> bool:
        """Whether the name server holds another version, or did not say (RocketMQ: needRegister counts that, too)."""
        now = self._timing.clock()
        request = pb.QueryDataVersionRequest(broker=registration.broker, data_version=registration.data_version)
        try:
            # Half of the time: an answer that never comes must leave enough for the registration itself.
            return target.need_register(request, now + (deadline - now) / 2)
        except NameServerError as error:
            _log.debug("query_data_version_failed", endpoint=str(target.endpoint), error=str(error))
            return True
