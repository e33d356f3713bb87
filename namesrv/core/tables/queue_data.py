"""All QueueDatas: one instance for each group and numbers, found again by the fragment that rows hold."""

from __future__ import annotations

from collections.abc import Iterable

from namesrv.core.records import fragments
from namesrv.core.records.rows import BrokerKey, QueueData, QueueNumbers, WriteRule, perm_under

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
        self._by_numbers: dict[BrokerKey, dict[QueueNumbers, QueueData]] = {}
        self._in_force_by_group: dict[BrokerKey, dict[bytes, bytes]] = {}

    def of_group(self, broker: BrokerKey) -> dict[QueueNumbers, QueueData]:
        """The QueueDatas of a group, to look one up without a call; ``intern`` adds to it."""
        return self._by_numbers.setdefault(broker, {})

    def intern(self, broker: BrokerKey, numbers: QueueNumbers) -> QueueData:
        """The QueueData with these numbers; made if there is none."""
        interned = self.of_group(broker)
        queue_data = interned.get(numbers)
        if queue_data is None:
            reported = fragments.queue_data_fragment(broker, numbers)
            queue_data = QueueData(
                broker,
                *numbers,
                fragment=reported,
                wiped_fragment=_under(WriteRule.WIPED, broker, numbers, reported),
                added_fragment=_under(WriteRule.ADDED, broker, numbers, reported),
            )
            interned[numbers] = queue_data
            self.by_fragment[reported] = queue_data
        return queue_data

    def set_rule(self, broker: BrokerKey, rule: WriteRule) -> None:
        """Puts a rule in force for all that a group has; call it again when QueueDatas have been added under one."""
        reported = rule is WriteRule.REPORTED
        interned = () if reported else self._by_numbers.get(broker, {}).values()
        after = {queue_data.fragment: queue_data.fragment_under(rule) for queue_data in interned}
        if after == self._in_force_by_group.get(broker, {}):
            return
        self._in_force_by_group[broker] = after
        if not after:
            del self._in_force_by_group[broker]
        self.in_force = {key: value for group in self._in_force_by_group.values() for key, value in group.items()}

    def is_crowded(self, broker: BrokerKey, in_use: int) -> bool:
        """Whether a group has so many QueueDatas that ``keep_only`` pays, if at most ``in_use`` of them are in use."""
        return len(self._by_numbers.get(broker, ())) > UNUSED_PER_BROKER + 2 * in_use

    def keep_only(self, broker: BrokerKey, used: Iterable[QueueData]) -> None:
        """Drops the QueueDatas of a group that no row uses."""
        kept = {queue_data.numbers: queue_data for queue_data in used}
        for numbers, queue_data in self._by_numbers.get(broker, {}).items():
            if numbers not in kept:
                del self.by_fragment[queue_data.fragment]
        self._by_numbers[broker] = kept

    def forget_group(self, broker: BrokerKey) -> None:
        """Drops everything of a group that has no rows any more."""
        self.set_rule(broker, WriteRule.REPORTED)
        for queue_data in self._by_numbers.pop(broker, {}).values():
            del self.by_fragment[queue_data.fragment]


def _under(rule: WriteRule, broker: BrokerKey, numbers: QueueNumbers, reported: bytes) -> bytes:
    perm = numbers[2]
    in_force = perm_under(rule, perm)
    if in_force == perm:
        return reported
    return fragments.queue_data_fragment(broker, (*numbers[:2], in_force, numbers[3]), reported_perm=perm)
