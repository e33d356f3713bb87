"""The mass-loss guard: keeps brokers in the routes when so many vanish at once that the network is the likely cause."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from namesrv.core.model import BrokerData, BrokerKey, BrokerLiveInfo, LiveKey, QueueData
from namesrv.core.pace import paced
from namesrv.core.policy import Behaviour, Clock

# The tally of brokers that are live and lost, by owner and by group: what the mass-loss guard decides by.


class Owner(NamedTuple):
    """The owner of brokers: a principal of the permits, an address, or, if both are empty, the whole fleet."""

    principal: str = ""
    """Empty without permits."""
    address: str = ""
    """Address that registered the brokers; empty if they have a principal."""


FLEET = Owner()
"""The owner of all brokers without a principal, after the first two minutes."""


class Voter(NamedTuple):
    """A broker as the tally counts it."""

    owner: Owner
    group: BrokerKey


Losing = Mapping[Owner, Counter[BrokerKey]]
"""Brokers that would be lost now, by owner and group."""


@dataclass(slots=True)
class _Holding:
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
        self._owners: dict[Owner, _Holding] = {}
        self._percent = 100
        """By which ``_owners_lost`` was counted."""
        self._owners_lost = 0

    def __contains__(self, key: LiveKey) -> bool:
        return key in self._voters

    def put(self, key: LiveKey, voter: Voter, *, lost: bool) -> None:
        """Counts a broker, instead of what it counted as before."""
        self.drop(key)
        self._voters[key] = voter, lost
        self._count(voter, 1, lost=lost)

    def lose(self, key: LiveKey) -> None:
        """Counts a broker as lost if it counts."""
        if key in self._voters:
            self.put(key, self._voters[key][0], lost=True)

    def drop(self, key: LiveKey) -> None:
        voter, lost = self._voters.pop(key, (None, False))
        if voter is not None:
            self._count(voter, -1, lost=lost)

    def without_addresses(self) -> LossTally:
        """Returns a tally of the same brokers in which the fleet owns those of all addresses."""
        tally = LossTally()
        for key, (voter, lost) in paced(self._voters.items()):
            tally.put(key, Voter(Owner(voter.owner.principal), voter.group), lost=lost)
        return tally

    def losing(self, keys: Iterable[LiveKey]) -> Losing:
        """Those of some brokers that count and are not lost yet."""
        found: dict[Owner, Counter[BrokerKey]] = {}
        for key in paced(keys):
            voter, lost = self._voters.get(key, (None, False))
            if voter is not None and not lost:
                found.setdefault(voter.owner, Counter())[voter.group] += 1
        return found

    def distrusted(self, behaviour: Behaviour, losing: Losing, owners: Iterable[Owner]) -> frozenset[Owner]:
        """Those of some owners whose losses are too many to be believed, if these brokers are lost as well."""
        self._count_owners_by(behaviour.mass_loss_percent)
        owners_lost = self._owners_lost + sum(
            self._votes_lost(owner, losing) - self._votes_lost(owner, {}) for owner in losing
        )
        return frozenset(owner for owner in owners if self._is_distrusted(behaviour, owner, losing, owners_lost))

    def _is_distrusted(self, behaviour: Behaviour, name: Owner, losing: Losing, owners_lost: int) -> bool:
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

    def _votes_lost(self, name: Owner, losing: Losing) -> bool:
        owner = self._owners.get(name, _NOBODY)
        return owner.votes_lost(self._percent, losing[name].total() if name in losing else 0)

    def _count(self, voter: Voter, by: int, *, lost: bool) -> None:
        owner = self._owners.setdefault(voter.owner, _Holding())
        before = owner.votes_lost(self._percent)
        owner.add(voter.group, by, lost=lost)
        self._owners_lost += owner.votes_lost(self._percent) - before
        if not owner.brokers:
            del self._owners[voter.owner]

    def _count_owners_by(self, percent: int) -> None:
        if percent != self._percent:
            self._percent = percent
            self._owners_lost = sum(owner.votes_lost(percent) for owner in self._owners.values())


_NOBODY = _Holding()
_NO_GROUPS: Counter[BrokerKey] = Counter()


def _add(counter: Counter[BrokerKey], group: BrokerKey, by: int) -> None:
    counter[group] += by
    if not counter[group]:
        del counter[group]


# The guard that tells the loss of a few brokers from that of a fleet, which the network or we have likely caused.


class LostBroker(NamedTuple):
    """A broker that was removed without having unregistered, with all that is needed to bring it back."""

    at: float
    """When, seconds of the monotonic clock."""
    live: BrokerLiveInfo
    group: BrokerData
    """Its group before it left."""
    queues: dict[str, QueueData]
    """The group's queues by topic if it was the last of its group, else none. They include those of held topics."""
    filter_servers: tuple[str, ...]


class _Member(NamedTuple):
    """A broker that confirmed itself, and is live, held, or lost within the window."""

    voter: Voter
    """Its owner is an address only if it is one of the first brokers."""
    since: float
    """When it came."""


class MassLossGuard:
    """Counts losses within a window and does not believe one that is too large.

    What it counts are confirmed brokers that vanish without unregistering, whether their channel ended or their time
    was up. The first of them are removed before the guard can know that more follow. So it remembers them, and they
    come back when it trips. Brokers that it holds go on counting until the window has passed, so that the rest of a
    fleet that vanishes little by little is held as well.

    Each owner's losses are judged by themselves (``LossTally``), and only brokers that were there for a while count:
    what was registered just now can neither be a mass loss nor hide one. Brokers that register together with the
    first ones count at once, or nothing would be guarded right after a start. Without permits their addresses own them
    at first, so that one address neither causes nor hides a mass loss of the others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._members: dict[LiveKey, _Member] = {}
        self._newcomers: dict[LiveKey, float] = {}
        """Live brokers that do not count yet, by when they came, oldest first."""
        self._founded_at = 0.0
        """When a first broker registered while there was none."""
        self._by_address = True
        """Whether addresses own the first brokers."""
        self._tally = LossTally()
        self._removed: dict[LiveKey, LostBroker] = {}
        """Lost within the window and removed, oldest first."""
        self._removed_of: Counter[Owner] = Counter()
        """How many of those each owner has."""
        self._held: dict[LiveKey, float] = {}
        """Lost within the window and held, with the time of each loss."""
        self._held_by_time: list[tuple[float, LiveKey]] = []
        """A heap of the same, and of some that are held no more: what an owner lost before may follow what another one
        lost later."""

    def distrusted(self, behaviour: Behaviour, losing: Collection[LiveKey]) -> frozenset[Owner]:
        """The owners whose losses are not believed: of those that lose brokers now, or lost some within the window.

        ``losing`` are the confirmed brokers that would be removed now.
        """
        self._pass_time(behaviour)
        if self._by_address and self._clock.monotonic() >= self._founded_at + 2 * behaviour.mass_loss_settle_seconds:
            self._tally = self._tally.without_addresses()
            self._by_address = False
            self._removed_of = Counter(map(self.owner_of, self._removed))
        counted = self._tally.losing(losing)
        owners = {self.owner_of(key) for key in losing} | self._removed_of.keys()
        return self._tally.distrusted(behaviour, counted, owners)

    def owner_of(self, key: LiveKey) -> Owner:
        """Returns the owner that a confirmed broker counts for."""
        return self._voter(self._members[key]).owner

    def confirmed(self, live: BrokerLiveInfo, owner: Owner, behaviour: Behaviour) -> None:
        """A broker registered. If it was lost within the window, it does not count as lost any more."""
        self._pass_time(behaviour)  # or a broker that was lost before the window would count as if it had stayed
        key = live.key
        member = self._members.get(key)
        was_lost = self._held.pop(key, None) is not None or self._forget_removed(key)
        if (
            member is not None
            and not was_lost
            and self._is_listed(key)
            and member == self._member(live.broker, owner, member.since, behaviour)
        ):
            return
        now = self._clock.monotonic()
        if not self._members:
            self._founded_at, self._by_address = now, True
        has_settled = member is not None and self._has_settled(member.since, now, behaviour)
        since = member.since if member is not None and has_settled else now
        self._members[key] = member = self._member(live.broker, owner, since, behaviour)
        self._tally.drop(key)
        self._newcomers.pop(key, None)
        if self._has_settled(since, now, behaviour):
            self._tally.put(key, self._voter(member), lost=False)
        else:
            self._newcomers[key] = since

    def left(self, key: LiveKey) -> None:
        """A broker is not in the tables any more, for whatever reason."""
        self._newcomers.pop(key, None)
        if key in self._removed:
            return  # it may come back, and counts as lost
        self._members.pop(key, None)
        if key not in self._held:
            self._tally.drop(key)

    def removed(self, brokers: list[LostBroker]) -> None:
        for lost in brokers:
            key = lost.live.key
            self._removed[key] = lost
            self._removed_of[self.owner_of(key)] += 1
            self._tally.lose(key)

    def recently_removed(self, owners: Collection[Owner]) -> list[LostBroker]:
        """What some owners lost within the window, and was removed, oldest first."""
        return [lost for key, lost in self._removed.items() if self.owner_of(key) in owners]

    def topic_deleted(self, topic: str, cluster_name: str | None) -> None:
        """An operator deleted a topic, in one cluster or in all: it does not come back with what was removed."""
        for lost in self._removed.values():
            if cluster_name in (None, lost.live.broker.cluster_name):
                lost.queues.pop(topic, None)

    def held(
        self, keys: Iterable[LiveKey], removed_before: Iterable[LostBroker], brought_back: Collection[LiveKey]
    ) -> None:
        """These were lost and are held; what was removed right before them has been brought back, or replaced."""
        for lost in removed_before:
            key = lost.live.key
            self._forget_removed(key)
            self._hold(key, lost.at)
            if key not in brought_back:
                self.left(key)
        now = self._clock.monotonic()
        for key in keys:
            self._hold(key, now)
            self._newcomers.pop(key, None)
            self._tally.lose(key)

    def _hold(self, key: LiveKey, at: float) -> None:
        self._held[key] = at
        heappush(self._held_by_time, (at, key))

    def _is_listed(self, key: LiveKey) -> bool:
        """Whether a member counts, or waits to."""
        return key in self._tally or key in self._newcomers

    def _member(self, group: BrokerKey, owner: Owner, since: float, behaviour: Behaviour) -> _Member:
        return _Member(Voter(owner if self._is_first(since, behaviour) else Owner(owner.principal), group), since)

    def _voter(self, member: _Member) -> Voter:
        """Returns a member as the tally counts it."""
        owner, group = member.voter
        return member.voter if self._by_address else Voter(Owner(owner.principal), group)

    def _is_first(self, since: float, behaviour: Behaviour) -> bool:
        """Reports whether a broker registered together with the first ones."""
        return since <= self._founded_at + behaviour.mass_loss_settle_seconds

    def _has_settled(self, since: float, now: float, behaviour: Behaviour) -> bool:
        return self._is_first(since, behaviour) or since + behaviour.mass_loss_settle_seconds <= now

    def _pass_time(self, behaviour: Behaviour) -> None:
        now = self._clock.monotonic()
        begin = now - behaviour.mass_loss_window_seconds
        for key in list(itertools.takewhile(lambda key: self._removed[key].at < begin, self._removed)):
            self._tally.drop(key)
            self._forget_removed(key)
            del self._members[key]
        while self._held_by_time and self._held_by_time[0][0] < begin:
            at, key = heappop(self._held_by_time)
            if self._held.get(key) == at:
                self._tally.drop(key)
                del self._held[key]
        settled = itertools.takewhile(
            lambda key: self._has_settled(self._newcomers[key], now, behaviour), self._newcomers
        )
        for key in list(settled):
            del self._newcomers[key]
            self._tally.put(key, self._members[key].voter, lost=False)

    def _forget_removed(self, key: LiveKey) -> bool:
        """Whether a broker was lost and removed within the window; it is remembered no longer."""
        if self._removed.pop(key, None) is None:
            return False
        owner = self.owner_of(key)
        self._removed_of[owner] -= 1
        if not self._removed_of[owner]:
            del self._removed_of[owner]
        return True
