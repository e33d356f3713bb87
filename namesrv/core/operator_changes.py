"""Changes that operators make: intents, topics, and the configurations that travel with routes."""

from __future__ import annotations

from typing import NamedTuple

from namesrv.core import model
from namesrv.core.address_claims import AddressClaim
from namesrv.core.changes import AddressClaimReleased, Cause, ConfigPut, IntentLifted, IntentPut, KvPut
from namesrv.core.edit import TableEdit, blast_radius
from namesrv.core.model import BlastRadius, BrokerKey, HoldKey, Intent, IntentTable, LiveKey
from namesrv.core.policy import Behaviour
from namesrv.core.slices import Sliced
from namesrv.core.state import RouteState

COMPARE_SLICE = 1_000
"""Intents that are compared before giving way: about a millisecond."""

APPLY_SLICE = 50
"""Intents that an edit takes into account before giving way: about a millisecond."""


class OperatorOutcome(NamedTuple):
    """The outcome of an operator's change that was made, or would be."""

    blast_radius: BlastRadius
    queue_data_count: int
    """Groups that lost queues of a topic, or have them again."""
    intents: tuple[IntentPut | IntentLifted, ...] = ()
    """What came into force or was lifted."""


class OperatorChanges(RouteState):
    """Changes that come from operators and not from brokers."""

    def publish_intents(
        self, intents: IntentTable, cause: Cause, *, validate_only: bool = False
    ) -> Sliced[OperatorOutcome]:
        """Makes another table of intents the one in force; it must be durable already. Takes a revision.

        Goes on after the beginning of a shutdown: what is durable must be in force.
        """
        before = self.intents
        edit = yield from self._begin_edit(intents)
        rows = yield from _differences(before, intents)
        count = 0
        for number, row in enumerate(rows, 1):
            if number % APPLY_SLICE == 0:
                yield
            count += yield from _apply(edit, row.intent, lifted=isinstance(row, IntentLifted))
        yield from edit.prepare()
        radius = yield from blast_radius(edit)
        if not validate_only:
            self.intents = intents
            self._commit(edit, cause, *rows)
            yield from self.tables.topic_queue_table.settle()
        return OperatorOutcome(radius, count, rows)

    def delete_topic(
        self, topic: str, cluster_name: str | None, cause: Cause, *, validate_only: bool = False
    ) -> Sliced[OperatorOutcome]:
        """Removes a topic's queues from all groups, or those of one cluster (RocketMQ: deleteTopic).

        They come back with the next registration that has another DataVersion, or is the first.

        Raises:
            ShuttingDown: The tables are frozen.
        """
        self._check_not_frozen()
        edit = yield from self._begin_edit()
        count = edit.remove_topic(topic, cluster_name)
        radius = yield from blast_radius(edit)
        if not validate_only:
            self._check_not_frozen()
            self._commit(edit, cause)
            self._guard.topic_deleted(topic, cluster_name)
            yield from self.tables.topic_queue_table.settle()
        return OperatorOutcome(radius, count)

    def publish_kv_config(self, table: model.KvConfigTable, cause: Cause) -> None:
        """Makes another KV configuration the current one; it must be durable already. Takes a revision."""
        rows = tuple(KvPut(*difference) for difference in table.differences_from(self.kv_config))
        self.kv_config = table
        self.append_change(cause, rows)

    def publish_behaviour(self, behaviour: Behaviour, cause: Cause, rows: tuple[ConfigPut, ...]) -> None:
        """Makes another behaviour the current one; it must be durable already. Takes a revision."""
        self.behaviour = behaviour
        self.append_change(cause, rows)

    def release_address_claim(self, key: LiveKey, cause: Cause) -> AddressClaim | None:
        """Ends the claim to an address, and returns it, if there is one. Takes a revision. Raises ShuttingDown."""
        self._check_not_frozen()
        claim = self.address_claims.at(key)
        if claim is not None:
            self.address_claims.release(key)
            self.append_change(cause, (AddressClaimReleased(key, claim.broker, claim.broker_id),))
        return claim

    def groups_named(self, broker_name: str, cluster_name: str | None) -> list[BrokerKey]:
        """The groups, registered or with an intent, that an operator may mean."""
        clusters = {name for name, brokers in self.tables.cluster_addr_table.items() if broker_name in brokers}
        for key in self.intents.intents:
            if isinstance(key, BrokerKey) and key.broker_name == broker_name:
                clusters.add(key.cluster_name)
        return [BrokerKey(name, broker_name) for name in sorted(clusters) if cluster_name in (None, name)]

    def is_reported(self, topic: str, cluster_name: str | None) -> bool:
        """Whether groups of a cluster, or of any, have queues of a topic, or report some that are held back."""
        find = self.tables.queue_datas.by_fragment
        brokers = [find[fragment].broker for fragment in self.tables.topic_queue_table.get(topic) or ()]
        brokers += self.tables.held_queue_table.get(topic, ())
        return any(cluster_name in (None, broker.cluster_name) for broker in brokers)

    def topic_count(self, broker: BrokerKey) -> int:
        """Topics that have queues on a group (RocketMQ: wipeTopicCount and addTopicCount)."""
        return len(self.tables.topics_by_broker.get(broker, ()))


def _differences(before: IntentTable, after: IntentTable) -> Sliced[tuple[IntentPut | IntentLifted, ...]]:
    rows: list[IntentPut | IntentLifted] = []
    for count, (key, intent) in enumerate(before.intents.items(), 1):
        if key not in after.intents:
            rows.append(IntentLifted(intent))
        if count % COMPARE_SLICE == 0:
            yield
    for count, (key, intent) in enumerate(after.intents.items(), 1):
        former = before.intents.get(key)
        # Most are the same object, and comparing their fields would take five times as long.
        if former is not intent and former != intent:
            rows.append(IntentPut(intent))
        if count % COMPARE_SLICE == 0:
            yield
    return tuple(rows)


def _apply(edit: TableEdit, intent: Intent, *, lifted: bool) -> Sliced[int]:
    """Has an edit take an intent into account that comes or goes; returns how many groups of a topic that is about."""
    if isinstance(intent.key, HoldKey):
        if lifted:
            return (yield from edit.release_topic(intent.key.topic))
        return edit.hold_topic(intent.key.topic, intent.key.cluster_name)
    group = edit.group(intent.key)
    if group is not None:
        edit.put_group(group)
    return 0
