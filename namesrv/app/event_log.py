"""Log lines and counts of what brokers and operators do: all in one module, so that they always look the same."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Literal, Self, get_args

import structlog
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.core.changes import Cause, Change, GroupChange, LiveChange
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import BrokerLiveInfo, HoldKey, IntentKey, RegisterBrokerResult, Registration, RemovedBroker
from namesrv.core.removals import MASS_LOSS_GUARD, TOPICS_NAMED, OperatorOutcome
from namesrv.core.state import RouteState
from namesrv_common.process.logs import RateLimitedLog
from namesrv_common.topic_names import SHOWN_CHARACTERS

BROKERS_NAMED = 3
"""Brokers that a line about many of them names; the others are counted."""

LINE_SECONDS = 1.0
"""Time between two lines about peers that break rules, in a flood of such lines."""

LINE_BURST = 20
"""Such lines that may come at once: each of a few peers is named."""

REGISTERED_SECONDS = 0.1
"""Time between two lines about changed registrations, in a flood of them. A line, with the work of the
thread that writes it, costs a fourth of a small registration. The journal has every change."""

REGISTERED_BURST = 1_000
"""Such lines that may come at once: a fleet that starts has one for each broker."""

ROUTINE = frozenset(
    {
        *(Reason.CHANNEL_GONE, Reason.NEED_FULL_REGISTRATION, Reason.SHUTTING_DOWN),
        *(Reason.REGISTRY_WARMING, Reason.KV_NOT_FOUND, Reason.TOPIC_NOT_FOUND),
    }
)
"""Reasons that belong to the protocol: their callers know what to do."""

_NAME = "namesrv.routes"
_log = structlog.get_logger(_NAME)
_lines = logging.getLogger(_NAME)


def log_topic_registered(topic: str, groups: int, revision: int) -> None:
    """A call gave a topic to groups without their registration, and that changed something."""
    _log.info("topic_registered", topic=topic, groups=groups, revision=revision)


def log_removed(brokers: Iterable[RemovedBroker]) -> None:
    for gone in brokers:
        _log.info(
            "broker_removed",
            reason=gone.reason.name,
            cluster=gone.live.broker.cluster_name,
            broker=gone.live.broker.broker_name,
            id=gone.live.broker_id,
            addr=gone.live.broker_addr,
            generation=gone.live.generation,
            group_gone=gone.group_gone,
            topics_removed=gone.topics_removed,
        )


def listen_for_warnings(state: RouteState) -> None:
    """Has changes log a warning: those of the mass-loss guard, and groups under a name that another cluster has.

    A large fleet is held in several changes, and brokers that vanish later in further ones: each has a line of its own.
    RocketMQ's protocol and ordered-topic configurations name groups without a cluster.
    """

    def on_change(change: Change) -> None:
        if change.cause is MASS_LOSS_GUARD:
            lives = [row for row in change.rows if isinstance(row, LiveChange)]
            _log.warning(
                "mass_loss_guard",
                brokers=len(lives),
                brought_back=sum(row.before is None for row in lives),
                first=", ".join(_name(row.live) for row in lives[:BROKERS_NAMED]),
                hold_seconds=state.behaviour.mass_loss_hold_seconds,
                revision=change.revision,
            )
        for row in change.rows:
            if isinstance(row, GroupChange) and row.before is None:
                cluster_name, broker_name = row.key
                first = next(iter(state.index.clusters_by_name[broker_name]))
                if first != cluster_name:
                    _log.warning(
                        "broker_name_in_two_clusters",
                        broker=broker_name,
                        first=first,
                        cluster=cluster_name,
                        revision=change.revision,
                    )

    state.change_log.listen(on_change)


class RegistrationLog:
    """Lines about registrations, and about parts of them that were not taken.

    Brokers repeat themselves, so each event has few lines a second. A line says how many others were left out.
    """

    def __init__(self) -> None:
        self._refused, self._topics, self._addresses = (
            RateLimitedLog(event, LINE_SECONDS, burst=LINE_BURST)
            for event in ("registration_refused", "topics_skipped", "addresses_skipped")
        )
        self._registered = RateLimitedLog(
            "broker_registered", REGISTERED_SECONDS, burst=REGISTERED_BURST, level=logging.INFO
        )

    def registered(self, registration: Registration, result: RegisterBrokerResult, revision: int) -> None:
        """A registration was accepted: at level info if it changed something, else debug."""
        log_removed(result.replaced)
        if not result.changed and not _lines.isEnabledFor(logging.DEBUG):
            return  # nearly every registration: making the line that nobody gets would be a twentieth of its cost
        emit = self._registered.log if result.changed else partial(_log.debug, "broker_registered")
        emit(
            cluster=registration.broker.cluster_name,
            broker=registration.broker.broker_name,
            id=registration.broker_id,
            addr=registration.broker_addr,
            new=result.is_new,
            counter=registration.data_version.counter,
            generation=result.generation,
            revision=revision,
        )

    def refused(self, cluster_name: str, broker_name: str, broker_addr: str, peer: str, error: Refused) -> None:
        """Logs that a registration was refused. The names may break their rules."""
        if error.reason not in ROUTINE:
            names = {"cluster": cluster_name, "broker": broker_name, "addr": broker_addr}
            shown = {name: text[:SHOWN_CHARACTERS] for name, text in names.items()}
            self._refused.log(**shown, peer=peer, reason=str(error.reason), problem=error.text)

    def topics_skipped(self, registration: Registration, skipped: int, problems: Mapping[str, str]) -> None:
        """Logs that topics break a rule and were passed over; ``problems`` has those of the first."""
        first = "; ".join(f"{topic!r} {problem}" for topic, problem in problems.items())
        self._topics.log(**_broker(registration), skipped=skipped, first=first)

    def addresses_skipped(self, registration: Registration, addresses: Sequence[str]) -> None:
        """Logs that addresses other than the broker's own are none, or are too many, and were passed over."""
        shown = ", ".join(repr(address[:SHOWN_CHARACTERS]) for address in addresses)
        self._addresses.log(**_broker(registration), first=shown)


def _broker(registration: Registration) -> dict[str, str]:
    broker = registration.broker
    return {"cluster": broker.cluster_name, "broker": broker.broker_name, "addr": registration.broker_addr}


def _name(live: BrokerLiveInfo) -> str:
    return f"{live.broker.broker_name} ({live.broker_addr}, id {live.broker_id}) of {live.broker.cluster_name}"


def log_intents(outcome: OperatorOutcome, cause: Cause, revision: int) -> None:
    """Logs intents that took effect or were lifted, one line each. The first has the effect of all on the routes."""
    did = {
        "topics_changed": outcome.blast_radius.topics_changed,
        "losing_last_writable_queue": outcome.blast_radius.topics_losing_last_writable_queue,
        "vanishing": outcome.blast_radius.topics_vanishing,
    }
    for row in outcome.intents:
        intent = row.intent
        _log.info(
            "intent_decided" if row.after else "intent_lifted",
            kind=intent.kind.name,
            **_subject(intent.key),
            ends_at_millis=intent.ends_at_millis,
            cause=cause.call,
            caller=cause.caller,
            comment=cause.comment,
            revision=revision,
            **did,
        )
        did = {}
    _log_in_use(outcome, cause)


def log_topic_deleted(key: HoldKey, outcome: OperatorOutcome, cause: Cause, revision: int) -> None:
    """An operator deleted a topic without holding it back."""
    _log.info(
        "topic_deleted",
        **_subject(key),
        groups=outcome.queue_data_count,
        caller=cause.caller,
        comment=cause.comment,
        revision=revision,
    )
    _log_in_use(outcome, cause)


def log_write_permission_wiped(broker_name: str, cluster_name: str, remedy: str) -> None:
    """A tool of RocketMQ took a group's write permission; some of them do not show the remark that names the remedy."""
    _log.warning("write_permission_wiped", broker=broker_name, cluster=cluster_name, remedy=remedy)


def _log_in_use(outcome: OperatorOutcome, cause: Cause) -> None:
    """A warning where a change took topics of applications from their producers, as RocketMQ's protocol always may."""
    if outcome.in_use is not None:
        _log.warning(
            "topics_in_use_taken",
            topics=", ".join(outcome.in_use.topics[:TOPICS_NAMED]),
            topic_count=outcome.in_use.topic_count,
            cause=cause.call,
            caller=cause.caller,
        )


def _subject(key: IntentKey) -> dict[str, str | None]:
    if isinstance(key, HoldKey):
        return {"topic": key.topic, "cluster": key.cluster_name}
    return {"broker": key.broker_name, "cluster": key.cluster_name}


# Numbers of registrations, which the event loop writes and the collector of metrics reads.

Kind = Literal["full", "increment", "refresh", "query", "heartbeat"]
"""The kinds of registrations. A refresh is an increment without topics."""

Result = Literal["changed", "unchanged", "refused"]
"""The outcomes of a registration."""


class Outcome:
    """The outcome of a registration: a context that counts it at its end."""

    __slots__ = ("_count", "_kind", "result")

    def __init__(self, count: Callable[[Kind, Result, object], None], kind: Kind) -> None:
        self._count = count
        self._kind = kind
        self.result: Result = "refused"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: object, _traceback: object) -> None:
        self._count(self._kind, self.result, error)


class RegistrationCounter:
    """The numbers of registrations by kind and outcome."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        # All begin at 0, or Prometheus would see no increase when the first of a kind is counted.
        self.counts: Counter[tuple[Kind, Result]] = Counter(dict.fromkeys(product(get_args(Kind), get_args(Result)), 0))
        self.topics_skipped = 0
        """Topics that were left out because they break a rule, where one odd topic must not refuse the others."""
        self._monotonic = monotonic
        self._refused_at: float | None = None
        self._skipped_at: float | None = None

    @property
    def refused_ago(self) -> float | None:
        """Seconds since a full registration was refused for a reason that the broker cannot fix by itself, or None.

        An agent repeats a refused increment in full at once, and opens a lost channel again.
        """
        return None if self._refused_at is None else self._monotonic() - self._refused_at

    @property
    def skipped_ago(self) -> float | None:
        """Seconds since topics were left out of a registration; None if none were."""
        return None if self._skipped_at is None else self._monotonic() - self._skipped_at

    def skipped(self, topics: int) -> None:
        """Counts topics that were left out of a registration."""
        self.topics_skipped += topics
        self._skipped_at = self._monotonic()

    def count(self, kind: Kind, result: Result, error: object = None) -> None:
        """Counts a registration, and remembers when an error refused a full one."""
        self.counts[kind, result] += 1
        if (kind, result) == ("full", "refused") and not (isinstance(error, Refused) and error.reason in ROUTINE):
            self._refused_at = self._monotonic()

    def counting(self, kind: Kind) -> Outcome:
        """Counts what happens in the context, with the outcome that it is given there; refused if it raises before."""
        return Outcome(self.count, kind)


def kind_of(request: pb.RegisterBrokerRequest) -> Kind:
    if not request.HasField("base_version"):
        return "full"
    return "increment" if request.topic_configs else "refresh"
