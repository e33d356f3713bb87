"""The broker's calls to all its name servers at once (RocketMQ: BrokerOuterAPI), and their combined answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog
from broker_agent_api.v1.broker_agent_service_pb2 import NamesrvTargetStatus
from namesrv_api.v1 import route_data_pb2

from broker_agent.errors import NameServerError
from broker_agent.fan_out import Lane, call_all
from broker_agent.name_server import CallRetries, Master, NamesrvTarget, RegisterBrokerResult
from broker_agent.namesrv_list import MAX_NAME_SERVERS
from broker_agent.registration import Registration
from broker_agent.timing import JOIN_SECONDS, Timing
from namesrv_common.endpoints import Endpoint
from namesrv_common.errors import Refused
from namesrv_common.process.shutdown import DaemonExecutor

Results = tuple[RegisterBrokerResult, ...]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BrokerOuterAPI:
    """Fans each call out to the name servers: a pool, one task each, a latch, results in a copy-on-write list.

    The results of a caller never change afterwards: an answer that comes after the latch has let the caller go is
    logged and not applied. RocketMQ asks all name servers whether the table changed, waits for all of them, and then
    sends it to all. Here each task asks its own name server, and registers only if that one says so or does not answer.
    So a name server that hangs delays no other's registration.
    """

    def __init__(
        self,
        endpoints: Callable[[], tuple[Endpoint, ...]],
        make: Callable[[Endpoint], NamesrvTarget],
        registration: Callable[[], Registration],
        register_seconds: float,
        timing: Timing,
        *,
        on_results: Callable[[Results], None] = lambda _: None,
        forget: Callable[[Endpoint], None] = lambda _: None,
    ) -> None:
        """Starts without name servers; ``follow_list`` takes those of the list.

        Args:
            endpoints: The name servers that are on the list now.
            make: Makes the target of a name server.
            registration: What name servers should hold now.
            on_results: Takes the answers of each round, and of each registration with one name server.
            forget: Called with each name server that has left the list.
        """
        self._endpoints = endpoints
        self._make = make
        self._registration = registration
        self.register_seconds = register_seconds
        """Longest time of a round of registrations. To unregister, or to hand over, takes half of it at most."""
        self._timing = timing
        self._on_results = on_results
        self._forget = forget
        self.is_suspended = False
        """Whether nothing is registered, because the broker is not there."""
        self._stopping = threading.Event()
        self._retries = CallRetries(timing, self._stopping)
        # A thread for each name server, so none waits for another (RocketMQ: brokerOuterExecutor has ten).
        self._pool = ThreadPoolExecutor(MAX_NAME_SERVERS, thread_name_prefix="broker-agent-outer")
        self._lock = threading.Lock()  # guards all below; the first is replaced whole
        self._lanes: dict[NamesrvTarget, Lane] = {}
        self._leaving: dict[NamesrvTarget, Lane] = {}
        self._disconnected = False

    @property
    def targets(self) -> tuple[NamesrvTarget, ...]:
        """The name servers on the list."""
        return tuple(self._lanes)

    def statuses(self) -> Iterator[NamesrvTargetStatus]:
        """How each name server on the list is, and whether something runs for it."""
        for target, lane in self._lanes.items():
            status = target.state.report()
            status.in_flight = lane.busy
            yield status

    def follow_list(self, *, open_now: bool = True) -> None:
        """Calls exactly the name servers of the list from now on. Does not wait for any of them.

        The broker is unregistered from each name server that has left the list. ``open_now`` opens a channel to each
        new one, which registers the broker with it.
        """
        with self._lock:
            if self._disconnected:
                return
            endpoints = self._endpoints()  # read under the lock, so that no older list replaces a newer one
            known = {target.endpoint for target in self._lanes}
            come = [self._make(endpoint) for endpoint in endpoints if endpoint not in known]
            gone = {target: lane for target, lane in self._lanes.items() if target.endpoint not in endpoints}
            kept = {target: lane for target, lane in self._lanes.items() if target not in gone}
            self._lanes = kept | {target: Lane(self._pool) for target in come}
            self._leaving = {left: lane for left, lane in self._leaving.items() if lane.busy} | gone
        for target, lane in gone.items():
            if not lane.submit(partial(self._leave, target)):
                target.close()
            self._forget(target.endpoint)
        if open_now:
            for target in come:
                target.open()
            named = {"come": come, "gone": gone}
            _log.info("name_servers_changed", **{how: [str(t.endpoint) for t in ts] for how, ts in named.items()})

    def register_broker_all(self, *, force: bool, after_others: bool = False) -> Results:
        """Registers the broker with every name server that needs it (RocketMQ: registerBrokerAll).

        A name server whose last call has not ended yet is left out, unless this is to follow it.

        Args:
            force: Send the whole table without asking first whether it changed.
            after_others: Follow a call that is in flight, instead of leaving its name server out.

        Returns:
            The answers that arrived in time, in the order of their arrival. Of name servers that failed, or hold the
            table already: none.
        """
        if not self._may_register():
            return ()
        registration = self._registration()
        if force:
            registration.full()  # encoding a large table takes a second, which must not count as the name servers' time
        deadline = self._timing.clock() + self.register_seconds

        def task(target: NamesrvTarget) -> RegisterBrokerResult | None:
            if not self._may_register():
                return None
            return target.synchronize(registration, deadline, self._retries, force=force)

        results = call_all(self._lanes, task, self.register_seconds, after_others=after_others)
        _log.debug("round_of_registrations", accepted=len(results))
        self._on_results(results)
        return results

    def register_changes(self) -> None:
        """Registers the broker with every name server that lacks its changes, in the background."""
        for target in self.targets:
            self.register_broker(target)

    def register_broker(self, target: NamesrvTarget) -> None:
        """Registers the broker with one name server that wants it, in the background and as soon as it can be.

        If a call to it is in flight, this follows it, and does nothing if that call was the registration wanted.
        """

        def work() -> None:
            current = self._registration()
            if current.same_as(target.state.known.held) or not self._may_register():
                return
            deadline = self._timing.clock() + self.register_seconds
            result = target.synchronize(current, deadline, self._retries)
            if result is not None:
                self._on_results((result,))

        lane = self._lanes.get(target)
        if lane is not None and self._may_register():
            lane.submit(work)

    def unregister_broker_all(
        self, reason: route_data_pb2.RemovalReason = route_data_pb2.REMOVAL_REASON_UNREGISTERED, *, wait: bool = True
    ) -> None:
        """Removes the broker from every name server, and suspends registrations (RocketMQ: unregisterBrokerAll).

        In parallel, where RocketMQ takes one name server after the other. Where it fails the channel is ended, which
        removes the broker as well.

        Args:
            reason: Why it leaves.
            wait: Whether to return only when it is done, or its time is over.
        """
        self.is_suspended = True
        deadline, seconds = self._leave_deadline(), self.register_seconds / 2 if wait else 0.0
        call_all(self._lanes, lambda target: self._unregister(target, reason, deadline), seconds, after_others=True)

    def hand_over_all(self) -> None:
        """Tells every name server that another agent will take the broker over; call it before the channels end."""
        deadline = self._leave_deadline()

        def task(target: NamesrvTarget) -> None:
            try:
                target.hand_over(deadline)
            except NameServerError as error:
                _log.warning("hand_over_failed", endpoint=str(target.endpoint), error=str(error))

        call_all(self._lanes, task, self.register_seconds / 2, after_others=True)

    def stop_registering(self) -> None:
        """Ends all waits between two attempts; nothing is registered from now on."""
        self._stopping.set()

    def close(self) -> None:
        """Ends all connections, and then the pool. Name servers that join the list later are not taken."""
        self._stopping.set()
        with self._lock:
            self._disconnected = True
            lanes = self._lanes | self._leaving
        with ThreadPoolExecutor(MAX_NAME_SERVERS, "broker-agent-closing") as closing:
            for target in lanes:
                closing.submit(target.close)
        running = [future for lane in lanes.values() if (future := lane.close()) is not None]
        _, stuck = futures.wait(running, JOIN_SECONDS)
        self._pool.shutdown(wait=not stuck, cancel_futures=True)

    def _may_register(self) -> bool:
        return not (self.is_suspended or self._stopping.is_set())

    def _leave_deadline(self) -> float:
        return self._timing.clock() + self.register_seconds / 2  # RocketMQ: 3 of 6 s

    def _leave(self, target: NamesrvTarget) -> None:
        self._unregister(target, route_data_pb2.REMOVAL_REASON_UNREGISTERED, self._leave_deadline())
        target.close()

    def _unregister(self, target: NamesrvTarget, reason: route_data_pb2.RemovalReason, deadline: float) -> None:
        broker = self._registration().broker.identity()
        try:
            self._retries.run(lambda: target.unregister(broker, reason, deadline), deadline)
        except NameServerError as error:
            _log.warning("unregister_failed", endpoint=str(target.endpoint), error=str(error))
            target.drop_channel()


class RegistrationResults:
    """Takes the answers of a round (RocketMQ: handleRegisterBrokerResult)."""

    def __init__(self, is_slave: Callable[[], bool], update_order_topics: Callable[[Collection[str]], None]) -> None:
        self._is_slave = is_slave
        self._update_order_topics = update_order_topics
        # A thread of its own: it writes to the disk, and no registration may wait for a disk that hangs.
        self._writing = DaemonExecutor(1, "broker-agent-order-topics")
        self._order_topics = Lane(self._writing)
        self._master: Master | None = None

    @property
    def master(self) -> Master | None:
        """The master, of a slave that has learnt it."""
        return self._master if self._is_slave() else None

    def take(self, results: Results) -> None:
        """Takes the answers of a round, or of one name server."""
        if self._is_slave():
            self._learn_master(results)
        ordered = next((result.order_topic_config for result in results if result.order_topic_config), None)
        if ordered:
            self._order_topics.submit(partial(self._update, ordered.keys()))

    def forget_master(self) -> None:
        """The broker's role has changed."""
        self._master = None

    def stop(self) -> None:
        """Takes no more order topics, and waits until those under way are on disk."""
        self._order_topics.close()
        self._writing.shutdown()

    def _update(self, topics: Collection[str]) -> None:
        try:
            self._update_order_topics(topics)
        except Refused as error:
            _log.warning("order_topics_not_updated", error=str(error))

    def _learn_master(self, results: Results) -> None:
        """Takes the first master that is named; if none is, keeps the known one.

        RocketMQ takes the first answer's, even if that name server has no master yet, and so pauses the slave.
        """
        master = next((result.master for result in results if result.master is not None), None)
        if master is not None and master != self._master:
            self._master = master
            _log.info("master_learnt", master_addr=master.addr, master_ha_server_addr=master.ha_server_addr)
