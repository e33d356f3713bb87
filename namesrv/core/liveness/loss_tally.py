"""The tally of brokers that are live and lost, by owner and by group: what the mass-loss guard decides by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from namesrv.core.behaviour import Behaviour
from namesrv.core.records.rows import BrokerKey, LiveKey
from namesrv.core.slices import Sliced

SLICE = 1_000
"""Brokers that are counted before giving way: a millisecond."""


class Voter(NamedTuple):
    """A broker as the tally counts it."""

    owner: str
    """Who registered it, by the permits; empty where there are none."""
    group: BrokerKey


Losing = Mapping[str, Counter[BrokerKey]]
"""Brokers that would be lost now, by owner and group."""


@dataclass(slots=True)
class _Owner:
    """What one owner has."""

    brokers: int = 0
    lost: int = 0
    groups: Counter[BrokerKey] = field(default_factory=Counter)
    """Brokers of each group, the lost ones among them."""
    lost_groups: Counter[BrokerKey] = field(default_factory=Counter)
    """Lost brokers of each group that has some."""

    def add(self, group: BrokerKey, by: int, *, lost: bool) -> None:
        self.brokers += by
        _add(self.groups, group, by)
        if lost:
            self.lost += by
            _add(self.lost_groups, group, by)

    def votes_lost(self, percent: int, more: int = 0) -> bool:
        """Whether the owner as a whole counts as lost, with so many more lost brokers."""
        lost = self.lost + more
        return lost > 0 and lost * 100 >= self.brokers * percent


class LossTally:
    """Judges owner by owner whether so many brokers are lost that the loss is not believed.

    Of the owner that is judged each broker counts. All that another owner has counts as one broker, and the losses
    must be most of the brokers without any one of the other owners, too. So nobody's brokers are held, or dropped,
    because of what one other owner registered.
    """

    def __init__(self) -> None:
        self._voters: dict[LiveKey, tuple[Voter, bool]] = {}
        """Each with whether it is lost."""
        self._owners: dict[str, _Owner] = {}
        self._percent = 100
        """By which ``_owners_lost`` was counted."""
        self._owners_lost = 0

    def __contains__(self, key: LiveKey) -> bool:
        return key in self._voters

    def put(self, key: LiveKey, voter: Voter, *, lost: bool) -> None:
        """Counts a broker, in place of what it counted as before."""
        self.drop(key)
        self._voters[key] = voter, lost
        self._count(voter, 1, lost=lost)

    def lose(self, key: LiveKey) -> None:
        """Counts a broker as lost if it counts."""
        if key in self._voters:
            self.put(key, self._voters[key][0], lost=True)

    def drop(self, key: LiveKey) -> None:
        """Does not count a broker any more."""
        voter, lost = self._voters.pop(key, (None, False))
        if voter is not None:
            self._count(voter, -1, lost=lost)

    def losing(self, keys: Iterable[LiveKey]) -> Sliced[Losing]:
        """Those of some brokers that count and are not lost yet."""
        found: dict[str, Counter[BrokerKey]] = {}
        for count, key in enumerate(keys, 1):
            voter, lost = self._voters.get(key, (None, False))
            if voter is not None and not lost:
                found.setdefault(voter.owner, Counter())[voter.group] += 1
            if count % SLICE == 0:
                yield
        return found

    def distrusted(self, behaviour: Behaviour, losing: Losing, owners: Iterable[str]) -> frozenset[str]:
        """Those of some owners whose losses are too many to be believed, if these brokers are lost as well."""
        self._count_owners_by(behaviour.mass_loss_percent)
        owners_lost = self._owners_lost + sum(
            self._votes_lost(owner, losing) - self._votes_lost(owner, {}) for owner in losing
        )
        return frozenset(owner for owner in owners if self._is_distrusted(behaviour, owner, losing, owners_lost))

    def _is_distrusted(self, behaviour: Behaviour, name: str, losing: Losing, owners_lost: int) -> bool:
        owner, more = self._owners.get(name, _NOBODY), losing.get(name, _NO_GROUPS)
        others = len(self._owners) - (name in self._owners)
        others_lost = owners_lost - self._votes_lost(name, losing)
        lost, brokers = owner.lost + more.total() + others_lost, owner.brokers + others
        new_groups = sum(group not in owner.lost_groups for group in more)
        lost_groups, groups = len(owner.lost_groups) + new_groups + others_lost, len(owner.groups) + others
        percent, one_other = behaviour.mass_loss_percent, min(others_lost, 1)
        return (
            lost >= behaviour.mass_loss_min_brokers
            and (lost - one_other) * 100 > (brokers - one_other) * percent
            and (lost_groups - one_other) * 100 >= (groups - one_other) * percent
        )

    def _votes_lost(self, name: str, losing: Losing) -> bool:
        owner = self._owners.get(name, _NOBODY)
        return owner.votes_lost(self._percent, losing[name].total() if name in losing else 0)

    def _count(self, voter: Voter, by: int, *, lost: bool) -> None:
        owner = self._owners.setdefault(voter.owner, _Owner())
        before = owner.votes_lost(self._percent)
        owner.add(voter.group, by, lost=lost)
        self._owners_lost += owner.votes_lost(self._percent) - before
        if not owner.brokers:
            del self._owners[voter.owner]

    def _count_owners_by(self, percent: int) -> None:
        if percent != self._percent:
            self._percent = percent
            self._owners_lost = sum(owner.votes_lost(percent) for owner in self._owners.values())


_NOBODY = _Owner()
_NO_GROUPS: Counter[BrokerKey] = Counter()


def _add(counter: Counter[BrokerKey], group: BrokerKey, by: int) -> None:
    counter[group] += by
    if not counter[group]:
        del counter[group]
