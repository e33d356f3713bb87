"""Changes that operators make: intents, topics, and the configurations that travel with routes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from namesrv_api.v1.admin_service_pb2 import BlastRadius, TopicsInUse

from namesrv.core.changes import Cause, Change, IntentChange, KvChange, SettingChange
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import Behaviour, HoldKey, Intent, IntentTable, KvConfigTable
from namesrv.core.pace import paced
from namesrv.core.state import ANY_NUMBER, RouteState
from namesrv.core.transaction import Transaction, effect_of
from namesrv_common.printable import counted

TOPICS_NAMED = 10
NAMED_BYTES = 2_500
"""Topics that an error names, and bytes of their names: it travels in metadata, whose size HTTP/2 bounds."""


class OperatorOutcome(NamedTuple):
    """The outcome of an operator's change that was made, or would be."""

    blast_radius: BlastRadius
    queue_data_count: int
    """Groups that lost queues of a topic, or have them again."""
    intents: tuple[IntentChange, ...] = ()
    """Intents that took effect or were lifted."""
    in_use: TopicsInUse | None = None
    """Topics of applications that it takes from their producers, if there are any."""


def publish_kv_config(state: RouteState, table: KvConfigTable, cause: Cause) -> None:
    """Makes another KV configuration the current one; it must be durable already. Takes a revision."""
    rows = tuple(KvChange(*difference) for difference in table.differences_from(state.kv_config))
    state.kv_config = table
    state.append_change(Change(cause, rows))


def publish_behaviour(state: RouteState, behaviour: Behaviour, cause: Cause, rows: tuple[SettingChange, ...]) -> None:
    """Makes another behaviour the current one; it must be durable already. Takes a revision."""
    state.behaviour = behaviour
    state.append_change(Change(cause, rows))


@dataclass
class IntentsChange:
    """The change to another table of intents, which must be durable already.

    It works during a shutdown too: durable intents must be in force.
    """

    topics: ClassVar[int] = ANY_NUMBER  # a group may have any number
    state: RouteState
    intents: IntentTable
    cause: Cause
    validate_only: bool = False

    def prepare(self) -> None:
        self._transaction = transaction = self.state.begin(self.cause, self.intents)
        self._rows = _differences(self.state.intents, self.intents)
        self._count = 0
        decided = False
        for row in paced(self._rows):
            decided = decided or row.after is not None
            self._count += _apply(transaction, row.intent, lifted=row.after is None)
        transaction.prepare(*self._rows)
        self._blast_radius, in_use = effect_of(transaction)
        self._in_use = in_use if decided else None

    def commit(self) -> OperatorOutcome:
        if not self.validate_only:
            self.state.intents = self.intents
            self.state.commit(self._transaction)
        return OperatorOutcome(self._blast_radius, self._count, self._rows, self._in_use)


@dataclass
class TopicDeletion:
    """The change that removes a topic's queues from all groups, or those of one cluster (RocketMQ: deleteTopic).

    They come back with the next registration that has another DataVersion, or is the first. The change raises
    SHUTTING_DOWN if the tables are frozen, and with ``refuse_in_use`` TOPICS_IN_USE.
    """

    topics: ClassVar[int] = 1
    state: RouteState
    topic: str
    cluster_name: str | None
    cause: Cause
    validate_only: bool = False
    refuse_in_use: bool = False

    def prepare(self) -> None:
        self.state.check_not_frozen()
        self._transaction = self.state.begin(self.cause)
        self._count = self._transaction.remove_topic(self.topic, self.cluster_name)
        self._transaction.prepare()
        self._blast_radius, self._in_use = effect_of(self._transaction)

    def commit(self) -> OperatorOutcome:
        if not self.validate_only:
            self.state.check_not_frozen()
            if self.refuse_in_use:
                check_not_in_use(self._in_use)
            self.state.commit(self._transaction)
            self.state.guard.topic_deleted(self.topic, self.cluster_name)
        return OperatorOutcome(self._blast_radius, self._count, in_use=self._in_use)


def check_not_in_use(in_use: TopicsInUse | None) -> None:
    """Raises TOPICS_IN_USE if a change takes topics of applications from their producers."""
    if in_use is None:
        return
    count, topics = in_use.topic_count, in_use.topics[:TOPICS_NAMED]
    sizes = itertools.accumulate(len(topic.encode()) for topic in topics)
    named = [topic for topic, size in zip(topics, sizes, strict=True) if size <= NAMED_BYTES]
    more = f" and {count - len(named):,} more" if count > len(named) else ""
    text = (
        f"{counted(count, 'application topic')} would lose queues that producers need: {', '.join(named)}{more}; "
        "set force to continue"
    )
    raise Refused(Reason.TOPICS_IN_USE, text, topics=", ".join(named), topic_count=count)


def _differences(before: IntentTable, after: IntentTable) -> tuple[IntentChange, ...]:
    keys = paced({**before.intents, **after.intents})
    intents = ((key, before.intents.get(key), after.intents.get(key)) for key in keys)
    # Most are the same object, and comparing their fields would take five times as long.
    return tuple(IntentChange(key, old, new) for key, old, new in intents if old is not new and old != new)


def _apply(transaction: Transaction, intent: Intent, *, lifted: bool) -> int:
    """Has a transaction heed an intent that comes or goes; returns how many groups of a topic that is about."""
    if isinstance(intent.key, HoldKey):
        if lifted:
            return transaction.release_topic(intent.key.topic)
        return transaction.remove_topic(intent.key.topic, intent.key.cluster_name, hold=True)
    group = transaction.group(intent.key)
    if group is not None:
        transaction.put_group(group)
    return 0
