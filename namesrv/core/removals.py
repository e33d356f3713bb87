"""Removals of brokers: unregistered, with their channel, by their silence, or confirmed as lost by an operator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from namesrv.core.changes import Cause
from namesrv.core.edit import TableEdit, blast_radius
from namesrv.core.mass_loss import LostBroker, Owner
from namesrv.core.model import (
    BlastRadius,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    QueueData,
    RemovalReason,
    RemovedBroker,
)
from namesrv.core.slices import Sliced
from namesrv.core.state import RouteState, Unconfirmed

BROKERS_PER_CHANGE = 200
"""Brokers that are removed in one change: publishing them is one step, of about a millisecond."""

BROKER_SLICE = 50
"""Brokers that are prepared before giving way: some milliseconds."""

UNREGISTER_BROKER = Cause("UnregisterBroker")

MASS_LOSS_GUARD = Cause("mass-loss guard")
"""Of changes by which the guard holds brokers, and brings back those that were removed right before."""

StillDue = Callable[[BrokerLiveInfo], bool]
"""Asked again right before the publication: a broker may have been heard of while its removal was prepared."""


class BrokerRemovals(RouteState):
    """Removals, and the guard that holds them back where too many brokers vanish at once."""

    def unregister_broker(
        self,
        broker: BrokerKey,
        broker_addr: str,
        reason: RemovalReason,
        generation: int | None = None,
        cause: Cause = UNREGISTER_BROKER,
    ) -> Sliced[RemovedBroker | None]:
        """Removes a broker by its cluster and address (RocketMQ: unregisterBroker, without its bug #5374).

        With a generation, the broker goes only if that is its current registration.

        Returns:
            What was removed; None if there was nothing to remove.

        Raises:
            ShuttingDown: The tables are frozen.
        """
        self._check_not_frozen()
        removed = yield from self._remove(
            [LiveKey(broker.cluster_name, broker_addr)],
            lambda _: reason,
            lambda live: live.broker == broker and generation in (None, live.generation),
            cause,
        )
        return removed[0] if removed else None

    def on_channel_destroy(self, channel_ids: Iterable[str]) -> Sliced[list[RemovedBroker]]:
        """Removes the brokers that registered last over channels that have ended (RocketMQ: onChannelDestroy).

        A broker that has registered over another channel since is not touched, so a late end of an old stream
        changes nothing. The channels themselves must have been ended in the channel table before.
        """
        ended = dict.fromkeys(channel_ids)  # each broker is looked up in it, and thousands may end together
        keys = [key for channel_id in ended for key in self.channels.take_bound(channel_id)]
        return (
            yield from self._lose(
                keys,
                RemovalReason.CHANNEL_CLOSED,
                lambda live: live.channel_id in ended,
                Cause("channel end"),
            )
        )

    @property
    def expiry_lag_seconds(self) -> float:
        """By how much the most overdue broker was overdue at the last scan; 0 if none was."""
        return self._liveness.longest_overdue

    def scan_not_active_broker(self) -> Sliced[list[RemovedBroker]]:
        """Removes the brokers that have been silent for longer than their timeout (RocketMQ: scanNotActiveBroker)."""
        overdue = yield from self._liveness.overdue_brokers()
        return (
            yield from self._lose(
                overdue,
                RemovalReason.EXPIRED,
                lambda live: self._liveness.is_overdue(live.key),
                Cause("expiry"),
            )
        )

    def confirm_broker_loss(
        self, wanted: Callable[[BrokerLiveInfo], bool], cause: Cause, *, validate_only: bool = False
    ) -> Sliced[tuple[list[RemovedBroker], BlastRadius]]:
        """Removes unconfirmed brokers because an operator says that they are gone.

        Returns:
            Those that are removed, or would be, and what that does to the routes.

        Raises:
            ShuttingDown: The tables are frozen.
        """
        self._check_not_frozen()
        table = self.tables.broker_live_table
        lives = [table[key] for key in self.unconfirmed if wanted(table[key])]
        edit = yield from self._begin_edit()
        removed = yield from self._prepare_removal(edit, lives, lambda _: RemovalReason.LOSS_CONFIRMED)
        radius = yield from blast_radius(edit)
        if not validate_only:
            self._check_not_frozen()
            removed = yield from self._remove(
                [live.key for live in lives],
                lambda _: RemovalReason.LOSS_CONFIRMED,
                lambda live: live.key in self.unconfirmed,  # it may have come back meanwhile
                cause,
            )
        return removed, radius

    # Losses

    def _lose(
        self, keys: list[LiveKey], reason: RemovalReason, still_due: StillDue, cause: Cause
    ) -> Sliced[list[RemovedBroker]]:
        """Removes brokers that vanished, unless they are too many at once: then they stay, unconfirmed."""
        while True:
            due = self._due(keys, still_due)
            losing = [live for live in due if live.key not in self.unconfirmed]
            if not losing:
                break
            owners = yield from self._guard.distrusted(self.behaviour, [live.key for live in losing])
            if not owners:
                break
            held = {live.key: live for live in losing if self._guard.owner_of(live.key) in owners}
            believed = [live.key for live in due if live.key not in held]
            keys = believed + (yield from self._hold(list(held.values()), owners, still_due))
        return (yield from self._remove(keys, lambda live: self._loss_reason(live, reason), still_due, cause))

    def _loss_reason(self, live: BrokerLiveInfo, reason: RemovalReason) -> RemovalReason:
        """A guarded broker whose time is up was lost long ago."""
        held = self.unconfirmed.get(live.key) is Unconfirmed.GUARD
        return RemovalReason.LOSS_CONFIRMED if held else reason

    def _hold(
        self, losing: list[BrokerLiveInfo], owners: Collection[Owner], still_due: StillDue
    ) -> Sliced[list[LiveKey]]:
        """Keeps brokers of some owners as unconfirmed, some in each change.

        Returns:
            Those that are not held because one of them was heard of meanwhile, so that all has to be judged anew.
        """
        for start in range(0, len(losing) or 1, BROKERS_PER_CHANGE):  # at least once, for what was removed before
            batch = losing[start : start + BROKERS_PER_CHANGE]
            if not (yield from self._hold_in_one_change(batch, owners, still_due)):
                return [live.key for live in losing[start:]]
        return []

    def _hold_in_one_change(
        self, losing: list[BrokerLiveInfo], owners: Collection[Owner], still_due: StillDue
    ) -> Sliced[bool]:
        """Keeps brokers as unconfirmed, and brings back those that their owners lost right before.

        Returns:
            False if one of them was heard of meanwhile, or the tables froze: then nothing has changed.
        """
        edit = yield from self._begin_edit()
        for count, live in enumerate(losing, 1):
            self._keep_unconfirmed(edit, live)
            if count % BROKER_SLICE == 0:
                yield
        brought_back: list[BrokerLiveInfo] = []
        removed_before = self._guard.recently_removed(owners)
        for lost in removed_before:
            brought_back += yield from self._bring_back(edit, lost)
        yield from edit.prepare()
        if self.frozen or len(self._due([live.key for live in losing], still_due)) != len(losing):
            return False
        self._commit(edit, MASS_LOSS_GUARD)
        self._guard.held((live.key for live in losing), removed_before, {live.key for live in brought_back})
        for live in (*losing, *brought_back):
            self.unconfirmed[live.key] = Unconfirmed.GUARD
            self._liveness.give(live.key, self.behaviour.mass_loss_hold_seconds)
            if live.channel_id is not None:
                self.channels.unbind(live.channel_id, live.key)
        yield from self.tables.topic_queue_table.settle()
        return True

    def _keep_unconfirmed(self, edit: TableEdit, live: BrokerLiveInfo) -> None:
        group = edit.group(live.broker)
        assert group is not None, "a live broker is always in its group"
        edit.put_group(replace(group, unconfirmed=group.unconfirmed | {live.broker_id}))
        edit.put_live(replace(live, unconfirmed=True, channel_id=None))

    def _bring_back(self, edit: TableEdit, lost: LostBroker) -> Sliced[list[BrokerLiveInfo]]:
        """Puts a lost broker back and returns it, unless somebody has its place meanwhile."""
        live = lost.live
        group = edit.group(live.broker) or replace(lost.group, addrs={}, unconfirmed=frozenset())
        if live.key in self.tables.broker_live_table or live.broker_id in group.addrs:
            return []
        edit.put_group(replace(group, addrs={**group.addrs, live.broker_id: live.broker_addr}))
        self._keep_unconfirmed(edit, live)
        if lost.filter_servers:
            edit.put_filter_servers(live.key, lost.filter_servers)
        known, held = self.tables.topics_by_broker.get(live.broker, ()), self.tables.held_queue_table
        configs = (
            (topic, data.reported)
            for topic, data in lost.queues.items()
            if topic not in known and live.broker not in held.get(topic, ())
        )
        yield from edit.put_topics(live.broker, configs)
        return [live]

    # Removal

    def _remove(
        self,
        keys: list[LiveKey],
        reason_of: Callable[[BrokerLiveInfo], RemovalReason],
        still_due: StillDue,
        cause: Cause,
    ) -> Sliced[list[RemovedBroker]]:
        """Removes those brokers that are still due, some in each change."""
        removed: list[RemovedBroker] = []
        for start in range(0, len(keys), BROKERS_PER_CHANGE):
            due = self._due(keys[start : start + BROKERS_PER_CHANGE], still_due)
            while due:
                edit = yield from self._begin_edit()
                gone = yield from self._prepare_removal(edit, due, reason_of)
                due_before, due = due, self._due([live.key for live in due], still_due)
                if len(due) == len(due_before):
                    self._commit_removal(edit, gone, cause)
                    yield from self.tables.topic_queue_table.settle()
                    removed += gone
                    break
        return removed

    def _due(self, keys: Iterable[LiveKey], still_due: StillDue) -> list[BrokerLiveInfo]:
        lives = map(self.tables.broker_live_table.get, keys)
        return [live for live in lives if live is not None and not self.frozen and still_due(live)]

    def _prepare_removal(
        self, edit: TableEdit, lives: list[BrokerLiveInfo], reason_of: Callable[[BrokerLiveInfo], RemovalReason]
    ) -> Sliced[list[RemovedBroker]]:
        removed = []
        for count, live in enumerate(lives, 1):
            reason = reason_of(live)
            group_gone = yield from edit.remove_broker(live, reason)
            topics = len(edit.lost_queues(live.broker)) if group_gone else 0
            removed.append(RemovedBroker(live, reason, group_gone, topics))
            if count % BROKER_SLICE == 0:
                yield
        yield from edit.prepare()
        return removed

    def _commit_removal(self, edit: TableEdit, removed: list[RemovedBroker], cause: Cause) -> None:
        vanished = (RemovalReason.CHANNEL_CLOSED, RemovalReason.EXPIRED)
        now, tables = self._clock.monotonic(), self.tables
        self._guard.removed(
            [
                LostBroker(
                    now,
                    gone.live,
                    tables.broker_addr_table[gone.live.broker],
                    _lost_queues(edit, gone.live.broker) if gone.group_gone else {},
                    tables.filter_server_table.get(gone.live.key, ()),
                )
                for gone in removed
                if gone.reason in vanished and gone.live.key not in self.unconfirmed
            ]
        )
        self._commit(edit, cause)
        for gone in removed:
            self._forget(gone.live)


def _lost_queues(edit: TableEdit, broker: BrokerKey) -> dict[str, QueueData]:
    """What a group that goes had, and what it has reported of topics that are held back."""
    return {**edit.lost_queues(broker), **edit.lost_held_queues(broker)}
