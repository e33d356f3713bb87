"""All QueueDatas: one instance for each group and what it reports, found again by the fragment that rows hold."""

from __future__ import annotations

from collections.abc import Iterable

from namesrv.core.records import fragments
from namesrv.core.records.rows import (
    BrokerKey,
    QueueData,
    QueueNumbers,
    ReportedQueues,
    WriteRule,
    perm_under,
)

UNUSED_PER_BROKER = 4_096
"""QueueDatas of one group that may be kept beyond twice those in use: a broker that cycles through counts must not
grow memory."""


class QueueDataTable:
    """Interned QueueDatas. A fragment names its group, so no two groups share one."""

    def __init__(self) -> None:
        self.by_fragment: dict[bytes, QueueData] = {}
        """Every QueueData by the fragment of what is reported."""
        self.in_force: dict[bytes, bytes] = {}
        """Fragment to the one in force, only of groups with another rule than REPORTED. Replaced, never changed."""
        self.mapped: set[BrokerKey] = set()
        """Groups that have QueueDatas of static topics."""
        self._by_reported: dict[BrokerKey, dict[ReportedQueues, QueueData]] = {}
        self._in_force_by_group: dict[BrokerKey, dict[bytes, bytes]] = {}

    def of_group(self, broker: BrokerKey) -> dict[ReportedQueues, QueueData]:
        """The QueueDatas of a group, to look one up without a call; ``intern`` adds to it."""
        return self._by_reported.setdefault(broker, {})

    def intern(self, broker: BrokerKey, reported: ReportedQueues) -> QueueData:
        """The QueueData of what a group reports; made if there is none."""
        interned = self.of_group(broker)
        queue_data = interned.get(reported)
        if queue_data is None:
            read, write, perm, flag, *rest = reported
            numbers, mapping = (read, write, perm, flag), rest[0] if rest else None
            encoded = fragments.mapping_field(mapping)
            fragment = fragments.queue_data_fragment(broker, numbers, encoded)
            queue_data = QueueData(
                broker,
                *numbers,
                fragment=fragment,
                wiped_fragment=_under(WriteRule.WIPED, broker, numbers, encoded, fragment),
                added_fragment=_under(WriteRule.ADDED, broker, numbers, encoded, fragment),
                mapping=mapping,
            )
            interned[reported] = queue_data
            self.by_fragment[fragment] = queue_data
            if mapping is not None:
                self.mapped.add(broker)
        return queue_data

    def set_rule(self, broker: BrokerKey, rule: WriteRule) -> None:
        """Puts a rule in force for all that a group has; call it again when QueueDatas have been added under one."""
        reported = rule is WriteRule.REPORTED
        interned = () if reported else self._by_reported.get(broker, {}).values()
        after = {queue_data.fragment: queue_data.fragment_under(rule) for queue_data in interned}
        if after == self._in_force_by_group.get(broker, {}):
            return
        self._in_force_by_group[broker] = after
        if not after:
            del self._in_force_by_group[broker]
        self.in_force = {key: value for group in self._in_force_by_group.values() for key, value in group.items()}

    def is_crowded(self, broker: BrokerKey, in_use: int) -> bool:
        """Whether a group has so many QueueDatas that ``keep_only`` pays, if at most ``in_use`` of them are in use."""
        return len(self._by_reported.get(broker, ())) > UNUSED_PER_BROKER + 2 * in_use

    def keep_only(self, broker: BrokerKey, used: Iterable[QueueData]) -> None:
        """Drops the QueueDatas of a group that no row uses."""
        kept = {queue_data.reported: queue_data for queue_data in used}
        for reported, queue_data in self._by_reported.get(broker, {}).items():
            if reported not in kept:
                del self.by_fragment[queue_data.fragment]
        self._by_reported[broker] = kept
        if all(queue_data.mapping is None for queue_data in kept.values()):
            self.mapped.discard(broker)

    def forget_group(self, broker: BrokerKey) -> None:
        """Drops everything of a group that has no rows any more."""
        self.set_rule(broker, WriteRule.REPORTED)
        self.mapped.discard(broker)
        for queue_data in self._by_reported.pop(broker, {}).values():
            del self.by_fragment[queue_data.fragment]


def _under(rule: WriteRule, broker: BrokerKey, numbers: QueueNumbers, mapping: bytes, reported: bytes) -> bytes:
    perm = numbers[2]
    in_force = perm_under(rule, perm)
    if in_force == perm:
        return reported
    return fragments.queue_data_fragment(broker, (*numbers[:2], in_force, numbers[3]), mapping, reported_perm=perm)
