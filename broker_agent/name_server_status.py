"""What the agent knows of one name server, and the next call that follows from it."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import structlog
from broker_agent_api.v1 import broker_agent_service_pb2 as pb
from namesrv_api.v1.registration_service_pb2 import RegisterBrokerRequest, RegisterBrokerResponse

from broker_agent.errors import NameServerError
from broker_agent.registration import Registration
from broker_agent.timing import Timing
from namesrv_common.endpoints import Endpoint

FIRST_REFUSED_SECONDS, LONGEST_REFUSED_SECONDS = 60.0, 3_600.0
"""How long a table that a name server refused for good is not sent to it again while neither table nor channel changes;
doubled each time. Otherwise a table that breaks a rule would be sent in every period.
"""
_REFUSED_FOR_GOOD = frozenset({"INVALID_FIELD", "LIMIT_EXCEEDED"})
MAX_EVENTS = 16
"""Latest events that are kept."""

CallResult = Literal["accepted", "unchanged", "changed", "failed"]
"""The outcomes of calls that keep the broker registered; the two in the middle are answers to a version query."""
_Event = pb.NamesrvEvent

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """What one name server holds of the broker, as far as the agent knows. Each answer replaces it."""

    held: Registration | None = None
    """The registration that the name server holds; None if it holds none or another one, or that is unknown."""
    generation: int | None = None
    """The name server's number for the last registration that it accepted; None if it never did."""
    has_news: bool = False
    """Whether the answer to a registration has news, so that a version query is not enough."""
    claims_id: bool = True
    """Whether the next registration takes the broker id also from another address that holds it."""
    id_doubtful: bool = True
    """Whether another address may hold the broker id: nothing was ever registered, or the name server has lost it."""
    refused: Registration | None = None
    """The registration that the name server refused for good last; None after a new channel."""
    refused_until: float = 0.0
    """When the refused registration may be sent again, seconds of the monotonic clock."""
    refused_seconds: float = FIRST_REFUSED_SECONDS
    """The pause after the last such refusal."""


class Call(enum.Enum):
    """A call that brings a name server up to date."""

    NONE = enum.auto()
    QUERY_VERSION = enum.auto()
    SEND_CHANGES = enum.auto()
    FIND_HOLDER = enum.auto()
    """Ask who holds the broker id. Two agents that claim one id would otherwise take it from each other in each period,
    and every route would change as often."""
    SEND_ALL = enum.auto()


def next_call(known: Known, wanted: Registration, now: float, *, force: bool = False) -> Call:
    """Returns the least call that makes a name server hold the wanted registration.

    Args:
        now: Seconds of the monotonic clock.
        force: Send the whole table without a version query.
    """
    if wanted.same_as(known.refused) and now < known.refused_until:
        return Call.NONE
    if known.held is not None and not force:
        if wanted.same_as(known.held) and not known.has_news and not wanted.broker.is_slave:
            return Call.QUERY_VERSION
        if wanted.increment_from(known.held) is not None:
            return Call.SEND_CHANGES
    takes_its_own_back = known.claims_id and known.generation is not None
    return Call.FIND_HOLDER if known.id_doubtful and not takes_its_own_back else Call.SEND_ALL


class NameServerStatus:
    """The agent's knowledge of one name server and its channel, and the facts for status, metrics and log.

    Logs each change once and not at each call. Any thread may call the methods.
    """

    def __init__(self, endpoint: Endpoint, timing: Timing) -> None:
        self.changed = threading.Condition()
        """Guards this. Notified when a channel opens."""
        self.channel_id: str | None = None
        """The channel that is open; None if none is. Guarded by ``changed``."""
        self.known = Known()
        """What the name server holds. Replaced whole, guarded by ``changed``."""
        self.endpoint = endpoint
        self.timing = timing
        self._log = _log.bind(endpoint=str(endpoint))
        self._registered: bool | None = None  # None: nothing is known of this name server yet
        self._report = pb.NamesrvTargetStatus(endpoint=str(endpoint))
        self._counts: Counter[tuple[pb.RegistrationKind, CallResult]] = Counter()
        self._confirmed_at: float | None = None

    @property
    def counts(self) -> Mapping[tuple[pb.RegistrationKind, CallResult], int]:
        """Calls so far that keep the broker registered."""
        with self.changed:
            return dict(self._counts)

    @property
    def confirmed_seconds_ago(self) -> float | None:
        """Seconds since the name server last accepted or confirmed a registration; None if it never did."""
        with self.changed:
            return None if self._confirmed_at is None else self.timing.clock() - self._confirmed_at

    def report(self) -> pb.NamesrvTargetStatus:
        """The status, without the fields that are only known elsewhere."""
        with self.changed:
            report = pb.NamesrvTargetStatus()
            report.CopyFrom(self._report)
            report.registered, report.channel_open = self._registered is True, self.channel_id is not None
            accepted = {kind: count for (kind, result), count in self._counts.items() if result == "accepted"}
            report.full_registration_count = accepted.pop(pb.REGISTRATION_KIND_FULL, 0)
            report.increment_count = sum(accepted.values())
            return report

    def event(self, kind: pb.NamesrvEvent.Kind, detail: str = "") -> None:
        """Keeps something that happened."""
        at_millis = self.timing.wall_millis()
        with self.changed:
            self._report.events.add(kind=kind, at_millis=at_millis, detail=detail)
            del self._report.events[:-MAX_EVENTS]

    def call_ended(self, seconds: float, error: str) -> None:
        """A call has ended after this time; the error is empty if it succeeded."""
        with self.changed:
            self._report.last_latency_millis = seconds * 1000
            self._report.last_error = error

    def late_answer(self) -> None:
        """An answer arrived after the wait for it was over."""
        with self.changed:
            self._report.late_answer_count += 1

    # The channel

    def channel_opened(self, channel_id: str) -> None:
        """A channel is open, and nothing is registered over it."""
        with self.changed:
            self.channel_id = channel_id
            self.known = replace(self.known, held=None, claims_id=True)
            self.changed.notify_all()

    def channel_ended(self, why: str, *, was_open: bool) -> None:
        """The channel has ended, and with it the registration over it; or it could not be opened."""
        with self.changed:
            self.channel_id = None
            self.known = replace(self.known, held=None, refused=None)
            self._report.last_error = why
        if was_open:
            self.event(_Event.KIND_CHANNEL_ENDED, why)
        self._not_registered(why)

    def news(self) -> None:
        """The name server has news that the answer to a registration brings."""
        with self.changed:
            self.known = replace(self.known, has_news=True)
        self.event(_Event.KIND_ORDER_TOPIC_CONFIG_CHANGED)

    # Registrations

    def claim_id(self) -> None:
        """Makes the next registration take the broker id from another holder, because the broker has a new role."""
        with self.changed:
            self.known = replace(self.known, claims_id=True)

    def registering(self) -> None:
        """A registration is about to be sent. Its answer has the news so far, and no later ones."""
        with self.changed:
            self.known = replace(self.known, has_news=False)

    def accepted(
        self,
        registration: Registration,
        kind: pb.RegistrationKind,
        request: RegisterBrokerRequest,
        response: RegisterBrokerResponse,
    ) -> None:
        """The name server accepted a registration. If its channel has ended since, the broker is removed again."""
        namesrv_name, generation = response.header.namesrv_name, response.generation
        topics = len(request.topic_configs)
        with self.changed:
            channel_is_open = request.channel_id == self.channel_id
            self.known = replace(
                self.known,
                held=registration if channel_is_open else None,
                generation=generation,
                claims_id=False,
                id_doubtful=False,
            )
            self._counts[kind, "accepted"] += 1
            self._confirmed_at = self.timing.clock()
            report = self._report
            report.namesrv_name, report.generation, report.broker_id_held_by = namesrv_name, generation, ""
            report.last_kind, report.last_topic_count = kind, topics
            report.last_registered_at_millis = self.timing.wall_millis()
            newly = channel_is_open and not self._registered
            self._registered = self._registered or newly
            if newly:  # logged here, before the end of a channel that ends at this moment
                self._log.info("registered", namesrv_name=namesrv_name, generation=generation, topics=topics)

    def refused(self, registration: Registration, kind: pb.RegistrationKind, error: NameServerError) -> None:
        """A registration failed. The name server may have accepted it, so it counts as holding nothing."""
        reason = error.rich.reason
        with self.changed:
            known = self.known
            doubtful = known.id_doubtful or reason == "NEED_FULL_REGISTRATION"
            self.known = replace(known, held=None, id_doubtful=doubtful)
            if reason in _REFUSED_FOR_GOOD and "caller" not in error.rich.metadata:
                again = registration.same_as(known.refused)
                seconds = min(2 * known.refused_seconds, LONGEST_REFUSED_SECONDS) if again else FIRST_REFUSED_SECONDS
                self.known = replace(
                    self.known,
                    refused=registration,
                    refused_seconds=seconds,
                    refused_until=self.timing.clock() + seconds,
                )
            self._report.last_error = str(error)
            self._counts[kind, "failed"] += 1
        if reason == "NEED_FULL_REGISTRATION":
            self.event(_Event.KIND_NEED_FULL_REGISTRATION, error.rich.message)
        else:
            self._not_registered(str(error))

    def not_sent(self, kind: pb.RegistrationKind, error: NameServerError) -> None:
        """A registration could not be sent, because no channel is open."""
        with self.changed:
            self._counts[kind, "failed"] += 1
        self._not_registered(str(error))

    def version_answered(self, namesrv_name: str, *, changed: bool, holds_any: bool) -> None:
        """The name server has answered a version query."""
        with self.changed:
            self._counts[pb.REGISTRATION_KIND_QUERY, "changed" if changed else "unchanged"] += 1
            self._report.namesrv_name = namesrv_name
            if not changed:
                self._confirmed_at = self.timing.clock()
                self._report.last_kind, self._report.last_topic_count = pb.REGISTRATION_KIND_QUERY, 0
                return
            lost = self.known.held is not None and not holds_any
            self.known = replace(self.known, held=None, id_doubtful=self.known.id_doubtful or not holds_any)
        if lost:
            why = "the name server does not know the broker any more"
            self.event(_Event.KIND_REGISTRATION_LOST, why)
            self._log.warning("registration_lost", error=why)

    def version_not_answered(self) -> None:
        """A version query failed: like a changed version, as RocketMQ's needRegister has it."""
        with self.changed:
            self._counts[pb.REGISTRATION_KIND_QUERY, "failed"] += 1
            self.known = replace(self.known, held=None)

    def unregistering(self) -> int | None:
        """The agent itself is about to remove the registration. Returns its generation."""
        with self.changed:
            self.known = replace(self.known, held=None)
            self._registered = None
            return self.known.generation

    def broker_id_taken(self, broker_addr: str) -> None:
        """Another address holds the broker id."""
        with self.changed:
            newly = self._report.broker_id_held_by != broker_addr
            self._report.broker_id_held_by = broker_addr
            self._registered = False
        if newly:
            self.event(_Event.KIND_BROKER_ID_TAKEN, f"{broker_addr} holds it")
            self._log.error("broker_id_taken", held_by=broker_addr)

    def broker_id_replaced(self, broker_addr: str) -> None:
        """This broker is about to take its id from another address."""
        self.event(_Event.KIND_BROKER_ID_REPLACED, f"{broker_addr} held it")
        self._log.warning("broker_id_replaced", held_by_until_now=broker_addr)

    def _not_registered(self, why: str) -> None:
        with self.changed:
            newly = self._registered is not False
            self._registered = False
        if newly:
            self._log.warning("not_registered", error=why)
        else:
            self._log.debug("still_not_registered", error=why)
