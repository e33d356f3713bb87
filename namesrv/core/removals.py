"""Removals of brokers: unregistered, with their channel, by their silence, or confirmed as lost by an operator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from namesrv_api.v1.admin_service_pb2 import BlastRadius

from namesrv.core.changes import Cause
from namesrv.core.liveness import LostBroker
from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    Doubt,
    LiveKey,
    RemovalReason,
    RemovedBroker,
)
from namesrv.core.pace import paced
from namesrv.core.state import ANY_NUMBER, RouteState
from namesrv.core.transaction import Transaction, effect_of

BROKERS_PER_CHANGE = 200
"""Brokers that are removed in one change: publishing them is one step, of about a millisecond."""

UNREGISTER_BROKER = Cause("UnregisterBroker")
CHANNEL_END = Cause("channel end")
EXPIRY = Cause("expiry")
PREVIEW = Cause("preview")

MASS_LOSS_GUARD = Cause("mass-loss guard")
"""Of changes by which the guard holds brokers, and brings back those that were removed right before."""

IsMeant = Callable[[BrokerLiveInfo], bool]
"""Whether a broker is to be removed. It is asked again right before the commit, as the broker may have been seen."""

VANISHED = (RemovalReason.CHANNEL_CLOSED, RemovalReason.EXPIRED)
"""Reasons of losses that the guard judges."""


# Removals, and the guard that holds them back where too many brokers vanish at once.
#
# Many brokers leave in several changes, and each depends on the one before. So these functions are iterators: make a
# change before you ask for the next. If a change is not made, because a broker was seen in the meantime, the next one
# has the other brokers. They read the state as the preparation of a change does.


def unregister_broker(
    state: RouteState,
    broker: BrokerKey,
    broker_addr: str,
    reason: RemovalReason,
    *,
    generation: int | None = None,
    cause: Cause = UNREGISTER_BROKER,
) -> Removal:
    """Removes a broker by its cluster and address (RocketMQ: unregisterBroker, without its bug #5374).

    With a generation, the broker goes only if that is its current registration. Raises SHUTTING_DOWN if the tables are
    frozen.
    """
    state.check_not_frozen()
    keys = [LiveKey(broker.cluster_name, broker_addr)]

    def is_meant(live: BrokerLiveInfo) -> bool:
        return live.broker == broker and generation in (None, live.generation)

    return Removal(state, keys, reason, is_meant, cause)


def on_channel_destroy(state: RouteState, channel_ids: Iterable[str]) -> Iterator[Removal | Hold]:
    """Removes the brokers that registered last over channels that have ended (RocketMQ: onChannelDestroy).

    A broker that has registered over another channel since is not touched, so a late end of an old stream changes
    nothing. The channels themselves must have been ended in the channel table before.
    """
    ended = dict.fromkeys(channel_ids)  # each broker is looked up in it, and thousands may end together
    keys = [key for channel_id in ended for key in state.liveness.take_bound(channel_id)]
    return _lose(state, keys, RemovalReason.CHANNEL_CLOSED, lambda live: live.channel_id in ended, CHANNEL_END)


def scan_not_active_broker(state: RouteState) -> Iterator[Removal | Hold]:
    """Removes the brokers that have been silent for longer than their timeout (RocketMQ: scanNotActiveBroker)."""
    liveness = state.liveness
    overdue = liveness.overdue_brokers()
    yield from _lose(state, overdue, RemovalReason.EXPIRED, lambda live: liveness.is_overdue(live.key), EXPIRY)


def preview_broker_loss(state: RouteState, wanted: IsMeant) -> LossPreview:
    """What ``confirm_broker_loss`` would do."""
    return LossPreview(state, list(state.unconfirmed), RemovalReason.LOSS_CONFIRMED, wanted, PREVIEW)


def confirm_broker_loss(state: RouteState, wanted: IsMeant, cause: Cause) -> Iterator[Removal | Hold]:
    """Removes unconfirmed brokers because an operator confirms their loss. The guard holds none of them.

    Raises SHUTTING_DOWN if the tables are frozen.
    """
    state.check_not_frozen()
    keys = [live.key for live in _due(state, list(state.unconfirmed), wanted)]
    # A broker that registers in the meantime stays.
    return _lose(state, keys, RemovalReason.LOSS_CONFIRMED, lambda live: live.unconfirmed, cause)


def _lose(
    state: RouteState, keys: list[LiveKey], reason: RemovalReason, is_meant: IsMeant, cause: Cause
) -> Iterator[Removal | Hold]:
    """Removes brokers that vanished, unless they are too many at once: then they stay, unconfirmed."""
    while due := _due(state, keys, is_meant):
        keys = [live.key for live in due]
        losing = [live for live in due if not live.unconfirmed]
        principals = state.guard.distrusted(state.behaviour, [live.key for live in losing])
        if held := [live for live in losing if state.guard.principal_of(live.key) in principals]:
            yield Hold(state, held[:BROKERS_PER_CHANGE], principals, is_meant)
        else:
            yield Removal(state, keys[:BROKERS_PER_CHANGE], reason, is_meant, cause)


@dataclass
class Removal:
    """The change that removes the brokers that are due. It is not made if one is seen in the meantime."""

    state: RouteState
    keys: Sequence[LiveKey]
    reason: RemovalReason
    is_meant: IsMeant
    cause: Cause

    @property
    def topics(self) -> int:
        topics_by_broker = self.state.index.topics_by_broker
        lives = filter(None, map(self.state.tables.broker_live_table.get, self.keys))
        return len(self.keys) + sum(len(topics_by_broker.get(live.broker, ())) for live in lives)

    def prepare(self) -> None:
        state, self._removed = self.state, list[RemovedBroker]()
        self._lives = _due(state, self.keys, self.is_meant)
        self._transaction = transaction = state.begin(self.cause)
        for live in paced(self._lives):
            # A guarded broker whose time is up was lost long ago.
            was_held = self.reason in VANISHED and state.doubts.get(live.key) is Doubt.GUARD
            reason = RemovalReason.LOSS_CONFIRMED if was_held else self.reason
            self._removed.append(transaction.remove_broker(live, reason))
        transaction.prepare()

    def commit(self) -> list[RemovedBroker]:
        """Returns those that were removed."""
        if not self._lives or not _are_due(self.state, self._lives, self.is_meant):
            return []
        self.state.guard.removed(self._losses())
        self.state.commit(self._transaction)
        for gone in self._removed:
            self.state.forget(gone.live)
        return self._removed

    def _losses(self) -> Iterator[LostBroker]:
        """What the guard counts. The brokers of a removed group share its queues, and each may bring them back."""
        if self.reason not in VANISHED:
            return
        tables, held = self.state.tables, self.state.index.held_by_group
        keys = {gone.live.broker for gone in self._removed if gone.group_gone}
        queues = {key: self._transaction.lost_queues(key) | held.get(key, {}) for key in keys}
        for removed in self._removed:
            live = removed.live
            if not live.unconfirmed:
                filter_servers = tables.filter_server_table.get(live.key) or ()
                group = tables.broker_addr_table[live.broker]
                yield LostBroker(live, group, queues.get(live.broker, {}), filter_servers)


class LossPreview(Removal):
    """The change that would remove brokers whose loss an operator confirms. Its commit changes nothing."""

    topics = ANY_NUMBER

    def prepare(self) -> None:
        self.state.check_not_frozen()
        super().prepare()
        self._blast_radius, _ = effect_of(self._transaction)

    def commit(self) -> tuple[list[RemovedBroker], BlastRadius]:  # type: ignore[override]
        """Returns those that would be removed, and what that would do to the routes."""
        return self._removed, self._blast_radius


@dataclass
class Hold:
    """The change that keeps brokers as unconfirmed, and brings back those that their principals lost right before.

    It is not made if one of them was seen while it was prepared.
    """

    topics: ClassVar[int] = ANY_NUMBER  # the brokers that it brings back are not known yet
    state: RouteState
    losing: list[BrokerLiveInfo]
    principals: Collection[str]
    is_meant: IsMeant

    def prepare(self) -> None:
        self._transaction = transaction = self.state.begin(MASS_LOSS_GUARD)
        for live in paced(self.losing):
            group = transaction.group(live.broker)
            assert group is not None, "a live broker is always in its group"
            _keep_unconfirmed(transaction, group, live)
        self._removed_before = self.state.guard.recently_removed(self.principals)
        self._brought_back = [lost.live for lost in self._removed_before if self._brings_back(transaction, lost)]
        transaction.prepare()

    def commit(self) -> list[RemovedBroker]:
        """Returns none: no broker is removed."""
        state = self.state
        if not _are_due(state, self.losing, self.is_meant):
            return []
        state.commit(self._transaction)
        state.guard.held((live.key for live in self.losing), self._removed_before)
        for live in (*self.losing, *self._brought_back):
            state.doubt(live.key, Doubt.GUARD, state.behaviour.mass_loss_hold_seconds)
            state.liveness.unbind(live)
        return []

    def _brings_back(self, transaction: Transaction, lost: LostBroker) -> bool:
        """Puts a lost broker back, and reports so, unless another broker has taken its id or address since."""
        live, index = lost.live, self.state.index
        group = transaction.group(live.broker) or replace(lost.group, members=())
        if live.key in self.state.tables.broker_live_table or live.broker_id in group.addrs:
            return False
        _keep_unconfirmed(transaction, group, live)
        if lost.filter_servers:
            transaction.put_filter_servers(live.key, lost.filter_servers)
        known, held = index.topics_by_broker.get(live.broker, ()), index.held_by_group.get(live.broker, ())
        missing = {name: data.reported for name, data in lost.queues.items() if name not in known and name not in held}
        transaction.put_topics(live.broker, missing.items())
        return True


def _keep_unconfirmed(transaction: Transaction, group: BrokerData, live: BrokerLiveInfo) -> None:
    kept = replace(live, unconfirmed=True, channel_id=None)
    transaction.put_group(group.with_member(kept.as_member()))
    transaction.put_live(kept)


def _due(state: RouteState, keys: Iterable[LiveKey], is_meant: IsMeant) -> list[BrokerLiveInfo]:
    lives = map(state.tables.broker_live_table.get, keys)
    return [live for live in lives if live is not None and not state.frozen and is_meant(live)]


def _are_due(state: RouteState, lives: Collection[BrokerLiveInfo], is_meant: IsMeant) -> bool:
    return len(_due(state, (live.key for live in lives), is_meant)) == len(lives)
