"""The state that all changes of the routes share: tables, what is in force beside them, and the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from namesrv.core import model
from namesrv.core.address_claims import AddressClaims
from namesrv.core.changes import Cause, ChangeLog, Row
from namesrv.core.digests import RouteDigests
from namesrv.core.edit import TableEdit, publish_edit
from namesrv.core.errors import ShuttingDown
from namesrv.core.liveness import ChannelTable, Liveness
from namesrv.core.mass_loss import MassLossGuard
from namesrv.core.model import BrokerLiveInfo, IntentTable, LiveKey
from namesrv.core.policy import Behaviour, Clock
from namesrv.core.slices import Leftovers, Sliced, run_sync
from namesrv.core.snapshot import TopicTableCopies
from namesrv.core.snapshot_load import LoadedSnapshot, read_snapshot
from namesrv.core.tables import Tables
from namesrv.core.topic_lists import TopicLists

BROKER_CHANNEL_EXPIRED_TIME = 120.0
"""Seconds of silence after which a broker is removed (RocketMQ's constant of that name)."""


class NamesrvIdentity(NamedTuple):
    """The identity of a name server: its name and its epoch."""

    name: str
    epoch: str


class Unconfirmed(Enum):
    """Why a broker is in the tables though it has not said so itself."""

    SNAPSHOT_FILE = 1
    """It was there before the name server's restart."""
    GUARD = 2
    """It vanished together with too many others."""


class RouteState:
    """The five tables and what goes with them.

    Everything happens on one thread, so there is no lock. Changes are ``Sliced``: they give way between slices while
    they prepare, and publish in one step at their end. Only one of them may be under way at a time; lookups and
    signs of life may come in between.
    """

    def __init__(
        self,
        identity: NamesrvIdentity,
        clock: Clock,
        new_channel_id: Callable[[], str],
        expired_time: float = BROKER_CHANNEL_EXPIRED_TIME,
        behaviour: Behaviour | None = None,
    ) -> None:
        """Starts empty.

        Args:
            new_channel_id: Makes unguessable channel ids.
            expired_time: Seconds of silence after which a broker, or an idle channel, is removed.
            behaviour: What operators may change; RocketMQ 4's if not given.
        """
        self.identity = identity
        self.behaviour = behaviour or Behaviour()
        self.tables = Tables()
        self.topic_lists = TopicLists(self.tables)
        self.intents = IntentTable()
        self.kv_config = model.EMPTY
        self.channels = ChannelTable(new_channel_id)
        self.change_log = ChangeLog()
        self.digests = RouteDigests(self.tables, self.change_log)
        self.unconfirmed: dict[LiveKey, Unconfirmed] = {}
        """Brokers of the live table that are not confirmed, and why."""
        self._possibly_partial: set[LiveKey] = set()
        """Brokers that have said one topic at most since they came, topic by topic: there may be more."""
        self.frozen = False
        """True from the beginning of a shutdown: the tables do not change any more."""
        self.leftovers = Leftovers()
        """What readers leave behind when they end."""
        self.granted_seconds = 0.0
        """How much time was granted to everybody so far, because this process did not run."""
        self._clock = clock
        self._expired_time = expired_time
        self._generation = 0
        self._liveness = Liveness(clock, expired_time)
        self._guard = MassLossGuard(clock)
        self.address_claims = AddressClaims(clock)
        self._header_fragment: tuple[int, bytes] = (-1, b"")
        self._topic_table_copies = TopicTableCopies(self.leftovers)

    @property
    def revision(self) -> int:
        """Number of the last change; 0 before the first."""
        return self.change_log.last.revision

    def guarded(self) -> tuple[int, int | None]:
        """How many brokers the mass-loss guard holds, and when it lets go of the last, Unix milliseconds.

        The time is None if there is none, and on a copy, whose leader decides.
        """
        held = [key for key, why in self.unconfirmed.items() if why is Unconfirmed.GUARD]
        left = self._liveness.longest_left(held)
        return len(held), None if left is None else self._clock.wall_millis() + round(left * 1000)

    def load_snapshot(self, messages: Iterable[bytes]) -> LoadedSnapshot:
        """Puts the messages of a snapshot file into empty tables: what this epoch begins with, at revision 0.

        Its brokers are unconfirmed. Each has its own timeout to register again, but no more than the name server's. The
        intents must be in force already; they apply to what the brokers reported. Does not give way: it is for the time
        before anybody listens.

        Raises:
            UnusableSnapshot: The messages are no snapshot; nothing has changed.
        """
        assert not self.revision, "a snapshot is loaded before anything changes"
        assert not self.tables.broker_live_table, "one snapshot is loaded"
        loaded = read_snapshot(messages)
        edit = run_sync(self._begin_edit())
        loaded.put_into(edit)
        self._publish(edit)  # its rows are no changes: nobody can have read the state before
        run_sync(self.tables.topic_queue_table.settle())
        for key, live in loaded.live.items():
            self.unconfirmed[key] = Unconfirmed.SNAPSHOT_FILE
            seconds = min(live.timeout_seconds, self._expired_time)
            self._liveness.loaded(key, loaded.last_update_millis[key], seconds)
            self._generation = max(self._generation, live.generation)
        return loaded

    def append_change(self, cause: Cause, rows: tuple[Row, ...]) -> None:
        """Gives rows that are in force already the next revision; nothing if there are none."""
        if rows:
            self.change_log.append(self._clock.wall_millis(), cause, rows)

    def _begin_edit(self, intents: IntentTable | None = None) -> Sliced[TableEdit]:
        """An edit of the tables, which has other intents in force afterwards if some are given."""
        yield from self.tables.topic_queue_table.settle()
        return TableEdit(self.tables, self.behaviour, intents or self.intents)

    def _commit(self, edit: TableEdit, cause: Cause, *more: Row) -> bool:
        """Publishes an edit. Have the topic table settle afterwards, unless the next edit comes at once.

        Returns:
            Whether anything changed that a reader can see.
        """
        rows = (*self._publish(edit), *more)
        self.append_change(cause, rows)
        return bool(rows)

    def _publish(self, edit: TableEdit) -> tuple[Row, ...]:
        """Makes an edit the tables' state. Returns what changed that a reader can see."""
        rows = publish_edit(edit)
        if edit.topic_names_changed:
            self.topic_lists.names_changed()
        return rows

    def _check_not_frozen(self) -> None:
        if self.frozen:
            raise ShuttingDown

    def _forget(self, live: BrokerLiveInfo) -> None:
        self._liveness.forget(live.key)
        self._guard.left(live.key)
        self.address_claims.left(live, self.behaviour.address_claim_seconds)
        self.unconfirmed.pop(live.key, None)
        self._possibly_partial.discard(live.key)
        if live.channel_id is not None:
            self.channels.unbind(live.channel_id, live.key)
