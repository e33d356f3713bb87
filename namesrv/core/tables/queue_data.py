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
from namesrv.core.slices import Sliced, run_sync

UNUSED_PER_BROKER = 4_096
"""QueueDatas of one group that may be kept beyond twice those in use: a broker that cycles through counts must not
grow memory."""

UNUSED_MAPPED_PER_BROKER = 200_000
"""The same of queues in mappings of static topics, of which one may have tens of thousands: about 25 MB."""


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
        self._mapped_queues: dict[BrokerKey, int] = {}
        """Queues in all mappings of a group that are here."""
        self._mapped_queues_kept: dict[BrokerKey, int] = {}
        """Those that were in use when it was last looked."""
        self._in_force_by_group: dict[BrokerKey, dict[bytes, bytes]] = {}

    def of_group(self, broker: BrokerKey) -> dict[ReportedQueues, QueueData]:
        """The QueueDatas of a group, to look one up without a call; ``added`` adds to it."""
        return self._by_reported.setdefault(broker, {})

    def intern(self, broker: BrokerKey, reported: ReportedQueues) -> QueueData:
        """The QueueData of what a group reports; made if there is none."""
        return self.of_group(broker).get(reported) or run_sync(self.added(broker, reported))

    def added(self, broker: BrokerKey, reported: ReportedQueues) -> Sliced[QueueData]:
        """Makes the QueueData of what a group has not reported yet; in steps if a mapping has many queues."""
        read, write, perm, flag, *rest = reported
        numbers, mapping = (read, write, perm, flag), rest[0] if rest else None
        encoded = b"" if mapping is None else (yield from fragments.mapping_field(mapping))
        fragment = fragments.queue_data_fragment(broker, numbers, encoded)
        queue_data = QueueData(
            broker,
            *numbers,
            fragment=fragment,
            wiped_fragment=_under(WriteRule.WIPED, broker, numbers, encoded, fragment),
            added_fragment=_under(WriteRule.ADDED, broker, numbers, encoded, fragment),
            mapping=mapping,
        )
        self.of_group(broker)[reported] = queue_data
        self.by_fragment[fragment] = queue_data
        if mapping is not None:
            self.mapped.add(broker)
            self._mapped_queues[broker] = self._mapped_queues.get(broker, 0) + len(mapping.queue_ids)
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
        if len(self._by_reported.get(broker, ())) > UNUSED_PER_BROKER + 2 * in_use:
            return True
        mapped, kept = self._mapped_queues.get(broker, 0), self._mapped_queues_kept.get(broker, 0)
        return mapped > UNUSED_MAPPED_PER_BROKER + 2 * kept

    def keep_only(self, broker: BrokerKey, used: Iterable[QueueData]) -> None:
        """Drops the QueueDatas of a group that no row uses."""
        kept = {queue_data.reported: queue_data for queue_data in used}
        for reported, queue_data in self._by_reported.get(broker, {}).items():
            if reported not in kept:
                del self.by_fragment[queue_data.fragment]
        self._by_reported[broker] = kept
        mappings = [queue_data.mapping for queue_data in kept.values() if queue_data.mapping is not None]
        if not mappings:
            self._forget_mappings(broker)
            return
        self._mapped_queues[broker] = self._mapped_queues_kept[broker] = sum(len(one.queue_ids) for one in mappings)

    def forget_group(self, broker: BrokerKey) -> None:
        """Drops everything of a group that has no rows any more."""
        self.set_rule(broker, WriteRule.REPORTED)
        self._forget_mappings(broker)
        for queue_data in self._by_reported.pop(broker, {}).values():
            del self.by_fragment[queue_data.fragment]

    def _forget_mappings(self, broker: BrokerKey) -> None:
        self.mapped.discard(broker)
        self._mapped_queues.pop(broker, None)
        self._mapped_queues_kept.pop(broker, None)


def _under(rule: WriteRule, broker: BrokerKey, numbers: QueueNumbers, mapping: bytes, reported: bytes) -> bytes:
    perm = numbers[2]
    in_force = perm_under(rule, perm)
    if in_force == perm:
        return reported
    return fragments.queue_data_fragment(broker, (*numbers[:2], in_force, numbers[3]), mapping, reported_perm=perm)
