"""Removals of brokers: unregistered, with their channel, by their silence, or confirmed as lost by an operator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from namesrv.core.changes import Cause
from namesrv.core.edit import TableEdit, blast_radius
from namesrv.core.mass_loss import LostBroker
from namesrv.core.model import (
    BlastRadius,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    Member,
    RemovalReason,
    RemovedBroker,
)
from namesrv.core.pace import paced
from namesrv.core.state import RouteState, Unconfirmed
from namesrv.core.state_change import ANY_NUMBER

BROKERS_PER_CHANGE = 200
"""Brokers that are removed in one change: publishing them is one step, of about a millisecond."""

UNREGISTER_BROKER = Cause("UnregisterBroker")
PREVIEW = Cause("preview")

MASS_LOSS_GUARD = Cause("mass-loss guard")
"""Of changes by which the guard holds brokers, and brings back those that were removed right before."""

StillDue = Callable[[BrokerLiveInfo], bool]
"""Checked again right before the commit: the broker may have been seen while its removal was prepared."""

Wanted = Callable[[BrokerLiveInfo], bool]
"""Which unconfirmed brokers an operator means."""

VANISHED = (RemovalReason.CHANNEL_CLOSED, RemovalReason.EXPIRED)
"""Reasons of losses that the guard judges."""


class Removals:
    """Removals, and the guard that holds them back where too many brokers vanish at once.

    Many brokers leave in several changes, and each depends on the one before. So these functions are iterators: make a
    change before you ask for the next. If a change is not made, because a broker was seen in the meantime, the next
    change has the other brokers. They read the state as the preparation of a change does.
    """

    def __init__(self, state: RouteState) -> None:
        self._state = state

    def unregister_broker(
        self,
        broker: BrokerKey,
        broker_addr: str,
        reason: RemovalReason,
        generation: int | None = None,
        cause: Cause = UNREGISTER_BROKER,
    ) -> Removal:
        """Removes a broker by its cluster and address (RocketMQ: unregisterBroker, without its bug #5374).

        With a generation, the broker goes only if that is its current registration. Raises SHUTTING_DOWN if the tables
        are frozen.
        """
        self._state.check_not_frozen()
        return Removal(
            self._state,
            [LiveKey(broker.cluster_name, broker_addr)],
            reason,
            lambda live: live.broker == broker and generation in (None, live.generation),
            cause,
        )

    def on_channel_destroy(self, channel_ids: Iterable[str]) -> Iterator[Removal | Hold]:
        """Removes the brokers that registered last over channels that have ended (RocketMQ: onChannelDestroy).

        A broker that has registered over another channel since is not touched, so a late end of an old stream
        changes nothing. The channels themselves must have been ended in the channel table before.
        """
        ended = dict.fromkeys(channel_ids)  # each broker is looked up in it, and thousands may end together
        keys = [key for channel_id in ended for key in self._state.channels.take_bound(channel_id)]
        return self._lose(
            keys, RemovalReason.CHANNEL_CLOSED, lambda live: live.channel_id in ended, Cause("channel end")
        )

    def scan_not_active_broker(self) -> Iterator[Removal | Hold]:
        """Removes the brokers that have been silent for longer than their timeout (RocketMQ: scanNotActiveBroker)."""
        liveness = self._state.liveness
        overdue = liveness.overdue_brokers()
        yield from self._lose(
            overdue, RemovalReason.EXPIRED, lambda live: liveness.is_overdue(live.key), Cause("expiry")
        )

    def preview_broker_loss(self, wanted: Wanted) -> LossPreview:
        """What ``confirm_broker_loss`` would do."""
        return LossPreview(self._state, wanted)

    def confirm_broker_loss(self, wanted: Wanted, cause: Cause) -> Iterator[Removal | Hold]:
        """Removes unconfirmed brokers because an operator confirms their loss. The guard holds none of them.

        Raises SHUTTING_DOWN if the tables are frozen.
        """
        state = self._state
        state.check_not_frozen()
        keys = [live.key for live in _unconfirmed(state, wanted)]
        # A broker that registers in the meantime stays.
        return self._lose(keys, RemovalReason.LOSS_CONFIRMED, lambda live: live.key in state.unconfirmed, cause)

    def _lose(
        self, keys: list[LiveKey], reason: RemovalReason, still_due: StillDue, cause: Cause
    ) -> Iterator[Removal | Hold]:
        """Removes brokers that vanished, unless they are too many at once: then they stay, unconfirmed."""
        state = self._state
        while due := _due(state, keys, still_due):
            keys = [live.key for live in due]
            losing = [live for live in due if live.key not in state.unconfirmed]
            principals = state.guard.distrusted(state.behaviour, [live.key for live in losing])
            if held := [live for live in losing if state.guard.principal_of(live.key) in principals]:
                yield Hold(state, held[:BROKERS_PER_CHANGE], principals, still_due)
            else:
                yield Removal(state, keys[:BROKERS_PER_CHANGE], reason, still_due, cause)


class Removal:
    """The change that removes the brokers that are due. It is not made if one is seen in the meantime."""

    def __init__(
        self,
        state: RouteState,
        keys: Sequence[LiveKey],
        reason: RemovalReason,
        still_due: StillDue,
        cause: Cause,
    ) -> None:
        self.state = state
        self._keys = keys
        self._reason = reason
        self._still_due = still_due
        self._cause = cause

    @property
    def topics(self) -> int:
        index = self.state.index
        lives = filter(None, map(self.state.tables.broker_live_table.get, self._keys))
        return len(self._keys) + sum(len(index.topics_by_broker.get(live.broker, ())) for live in lives)

    def prepare(self) -> None:
        self._lives = _due(self.state, self._keys, self._still_due)
        self._edit, self._removed = _prepared(self.state, self._lives, self._reason, self._cause)

    def commit(self) -> list[RemovedBroker]:
        """Returns those that were removed."""
        due = _due(self.state, [live.key for live in self._lives], self._still_due)
        if len(due) < len(self._lives):
            return []
        if due:
            self._tell_guard()
            self.state.commit(self._edit)
            for gone in self._removed:
                self.state.forget(gone.live)
        return self._removed

    def _tell_guard(self) -> None:
        tables, edit = self.state.tables, self._edit
        self.state.guard.removed(
            [
                LostBroker(
                    gone.live,
                    tables.broker_addr_table[gone.live.broker],
                    edit.all_lost_queues(gone.live.broker) if gone.group_gone else {},
                    tables.filter_server_table.get(gone.live.key) or (),
                )
                for gone in self._removed
                if gone.reason in VANISHED and gone.live.key not in self.state.unconfirmed
            ]
        )


class LossPreview:
    """The change that would remove brokers whose loss an operator confirms. Its commit changes nothing."""

    topics = ANY_NUMBER

    def __init__(self, state: RouteState, wanted: Wanted) -> None:
        self.state = state
        self._wanted = wanted

    def prepare(self) -> None:
        self.state.check_not_frozen()
        lives = _unconfirmed(self.state, self._wanted)
        edit, self._removed = _prepared(self.state, lives, RemovalReason.LOSS_CONFIRMED, PREVIEW)
        self._blast_radius = blast_radius(edit)

    def commit(self) -> tuple[list[RemovedBroker], BlastRadius]:
        """Returns those that would be removed, and what that would do to the routes."""
        return self._removed, self._blast_radius


class Hold:
    """The change that keeps brokers as unconfirmed, and brings back those that their principals lost right before.

    It is not made if one of them was seen while it was prepared.
    """

    topics = ANY_NUMBER  # the brokers that it brings back are not known yet

    def __init__(
        self, state: RouteState, losing: list[BrokerLiveInfo], principals: Collection[str], still_due: StillDue
    ) -> None:
        self.state = state
        self._losing = losing
        self._principals = principals
        self._still_due = still_due

    def prepare(self) -> None:
        self._edit = edit = self.state.begin_edit(MASS_LOSS_GUARD)
        for live in paced(self._losing):
            group = edit.group(live.broker)
            assert group is not None, "a live broker is always in its group"
            _keep_unconfirmed(edit, group, live)
        self._removed_before = self.state.guard.recently_removed(self._principals)
        brought_back = (self._bring_back(edit, lost) for lost in self._removed_before)
        self._brought_back = [live for live in brought_back if live is not None]
        edit.prepare()

    def commit(self) -> list[RemovedBroker]:
        """Returns none: no broker is removed."""
        state, losing, brought_back = self.state, self._losing, self._brought_back
        if len(_due(state, [live.key for live in losing], self._still_due)) < len(losing):
            return []
        state.commit(self._edit)
        state.guard.held((live.key for live in losing), self._removed_before)
        for live in (*losing, *brought_back):
            state.unconfirmed[live.key] = Unconfirmed.GUARD
            state.liveness.give(live.key, state.behaviour.mass_loss_hold_seconds)
            if live.channel_id is not None:
                state.channels.unbind(live.channel_id, live.key)
        return []

    def _bring_back(self, edit: TableEdit, lost: LostBroker) -> BrokerLiveInfo | None:
        """Puts a lost broker back and returns it, unless another broker has taken its id or address since."""
        live, index = lost.live, self.state.index
        group = edit.group(live.broker) or replace(lost.group, members=())
        if live.key in self.state.tables.broker_live_table or live.broker_id in group.addrs:
            return None
        _keep_unconfirmed(edit, group, live)
        if lost.filter_servers:
            edit.put_filter_servers(live.key, lost.filter_servers)
        known, held = index.topics_by_broker.get(live.broker, ()), index.held_queue_table
        configs = (
            (topic, data.reported)
            for topic, data in lost.queues.items()
            if topic not in known and live.broker not in held.get(topic, ())
        )
        edit.put_topics(live.broker, configs)
        return live


def _keep_unconfirmed(edit: TableEdit, group: BrokerData, live: BrokerLiveInfo) -> None:
    edit.put_group(group.with_member(Member(live.broker_id, live.broker_addr, unconfirmed=True)))
    edit.put_live(replace(live, unconfirmed=True, channel_id=None))


def _due(state: RouteState, keys: Iterable[LiveKey], still_due: StillDue) -> list[BrokerLiveInfo]:
    lives = map(state.tables.broker_live_table.get, keys)
    return [live for live in lives if live is not None and not state.frozen and still_due(live)]


def _unconfirmed(state: RouteState, wanted: Wanted) -> list[BrokerLiveInfo]:
    table = state.tables.broker_live_table
    return [live for key in tuple(state.unconfirmed) if (live := table.get(key)) is not None and wanted(live)]


def _prepared(
    state: RouteState, lives: Sequence[BrokerLiveInfo], reason: RemovalReason, cause: Cause
) -> tuple[TableEdit, list[RemovedBroker]]:
    """A prepared edit without some brokers. A guarded broker whose time is up was lost long ago."""
    edit, removed = state.begin_edit(cause), list[RemovedBroker]()
    for live in paced(lives):
        was_held = reason in VANISHED and state.unconfirmed.get(live.key) is Unconfirmed.GUARD
        of_this = RemovalReason.LOSS_CONFIRMED if was_held else reason
        group_gone = edit.remove_broker(live, of_this)
        topics = len(edit.lost_queues(live.broker)) if group_gone else 0
        removed.append(RemovedBroker(live, of_this, group_gone, topics))
    edit.prepare()
    return edit, removed
