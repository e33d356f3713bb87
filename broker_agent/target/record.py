"""Facts about one name server, for the status and the log."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import Literal

import structlog
from broker_agent_api.v1 import broker_agent_service_pb2 as pb

from broker_agent.timing.clock import Timing
from groundwork.endpoints import Endpoint

MAX_EVENTS = 16
"""Latest events that are kept."""

CallResult = Literal["accepted", "unchanged", "changed", "failed"]
"""The outcomes of calls that keep the broker registered; the two in the middle are answers to a question."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TargetRecord:
    """Remembers the state of one name server, and logs each change of it once and not at each call.

    All methods may be called from any thread.
    """

    def __init__(self, endpoint: Endpoint, timing: Timing) -> None:
        self._timing = timing
        self._log = _log.bind(endpoint=str(endpoint))
        self._lock = threading.Lock()
        self._registered: bool | None = None  # None: nothing is known of this name server yet
        self._status = pb.NamesrvTargetStatus(endpoint=str(endpoint))
        self._events: deque[pb.NamesrvEvent] = deque(maxlen=MAX_EVENTS)
        self._counts: Counter[tuple[pb.RegistrationKind, CallResult]] = Counter()
        self._confirmed_at: float | None = None

    @property
    def registered(self) -> bool:
        """Whether the name server holds the registration as far as the agent knows."""
        with self._lock:
            return self._registered is True

    @property
    def last_error(self) -> str:
        """The last error; empty if the last call succeeded."""
        with self._lock:
            return self._status.last_error

    @property
    def counts(self) -> Mapping[tuple[pb.RegistrationKind, CallResult], int]:
        """Calls so far that keep the broker registered."""
        with self._lock:
            return dict(self._counts)

    @property
    def confirmed_seconds_ago(self) -> float | None:
        """Time since the name server last accepted a registration or said that it holds it; None if it never did."""
        with self._lock:
            return None if self._confirmed_at is None else self._timing.clock() - self._confirmed_at

    def status(self) -> pb.NamesrvTargetStatus:
        """The status, without the parts that are only known elsewhere."""
        with self._lock:
            status = pb.NamesrvTargetStatus()
            status.CopyFrom(self._status)
            status.registered = self._registered is True
            status.events.extend(self._events)
            return status

    def event(self, kind: pb.NamesrvEvent.Kind, detail: str = "") -> None:
        """Keeps something that happened."""
        at_millis = int(self._timing.wall_clock() * 1000)
        with self._lock:
            self._events.append(pb.NamesrvEvent(kind=kind, at_millis=at_millis, detail=detail))

    def call_ended(self, seconds: float, error: str) -> None:
        """A call has ended after this time; it failed if there is an error."""
        with self._lock:
            self._status.last_latency_millis = seconds * 1000
            self._status.last_error = error

    def count(self, kind: pb.RegistrationKind, result: CallResult) -> None:
        """A call that keeps the broker registered has ended."""
        with self._lock:
            self._counts[kind, result] += 1

    def failed(self, error: str) -> None:
        """Something other than a call failed."""
        with self._lock:
            self._status.last_error = error

    def answered(self, namesrv_name: str) -> None:
        """The name server has told its name."""
        with self._lock:
            self._status.namesrv_name = namesrv_name

    def late_answer(self) -> None:
        """An answer came, or a call was swept, after the wait for it was over."""
        with self._lock:
            self._status.late_answers += 1

    def queried(self) -> None:
        """The name server said that nothing has changed."""
        with self._lock:
            self._confirmed_at = self._timing.clock()
            self._status.last_kind = pb.REGISTRATION_KIND_QUERY
            self._status.last_parts = self._status.last_topics = 0

    def accepted(
        self, kind: pb.RegistrationKind, *, parts: int, topics: int, generation: int, channel_is_open: bool
    ) -> None:
        """The name server accepted a registration.

        Args:
            kind: What it was.
            parts: Messages that it travelled in.
            topics: Topics in all of them.
            generation: The name server's number for it.
            channel_is_open: False if its channel has ended since: then the name server has removed the broker again.
        """
        with self._lock:
            self._counts[kind, "accepted"] += 1
            self._confirmed_at = self._timing.clock()
            status = self._status
            status.last_kind, status.last_parts, status.last_topics = kind, parts, topics
            status.generation = generation
            status.last_registered_at_millis = int(self._timing.wall_clock() * 1000)
            status.broker_id_held_by = ""
            if kind == pb.REGISTRATION_KIND_FULL:
                status.full_registrations += 1
            else:
                status.increments += 1
            newly = channel_is_open and self._registered is not True
            self._registered = self._registered or newly
            name = status.namesrv_name
        if newly:
            self._log.info("registered", namesrv_name=name, generation=generation, topics=topics, parts=parts)

    def not_registered(self, why: str) -> None:
        """The name server does not hold the registration."""
        with self._lock:
            newly = self._registered is not False
            self._registered = False
        if newly:
            self._log.warning("not_registered", error=why)
        else:
            self._log.debug("still_not_registered", error=why)

    def unregistered(self) -> None:
        """The agent itself has removed the registration."""
        with self._lock:
            self._registered = None

    def broker_id_taken(self, broker_addr: str) -> None:
        """Another address holds this broker's id."""
        with self._lock:
            newly = self._status.broker_id_held_by != broker_addr
            self._status.broker_id_held_by = broker_addr
            self._registered = False
        if newly:
            self.event(pb.NamesrvEvent.KIND_BROKER_ID_TAKEN, f"{broker_addr} holds it")
            self._log.error("broker_id_taken", held_by=broker_addr)

    def broker_id_replaced(self, broker_addr: str) -> None:
        """This broker is about to take its id from another address."""
        self.event(pb.NamesrvEvent.KIND_BROKER_ID_REPLACED, f"{broker_addr} held it")
        self._log.warning("broker_id_replaced", held_by_until_now=broker_addr)
