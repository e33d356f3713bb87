"""The state that all changes of the routes share: tables, intents and settings, and the commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from namesrv_api.v1 import route_data_pb2

from namesrv.core.changes import Cause, Change, ChangeLog, KvChange, SettingChange
from namesrv.core.errors import broker_not_registered, shutting_down
from namesrv.core.lists import RouteDigests, TopicLists
from namesrv.core.liveness import Liveness, MassLossGuard
from namesrv.core.model import (
    ORDER_TOPIC_CONFIG,
    Behaviour,
    BrokerKey,
    BrokerLiveInfo,
    Clock,
    DataVersion,
    Doubt,
    Doubted,
    IntentKey,
    IntentTable,
    KvConfigTable,
    LiveKey,
    QueueData,
)
from namesrv.core.snapshot import LoadedSnapshot, RouteSnapshot, read_snapshot
from namesrv.core.tables import TableIndex, Tables, frame, is_in_zone
from namesrv.core.transaction import Transaction, update_index
from namesrv_common.topic_names import SYNC_MEMBER_TOPIC_PREFIX

_ORDER_TOPIC_CONF_NUMBER = route_data_pb2.TopicRouteData.ORDER_TOPIC_CONF_FIELD_NUMBER

BROKER_CHANNEL_EXPIRED_TIME = 120.0
"""Seconds of silence after which a broker is removed (RocketMQ's constant of that name)."""


class NamesrvIdentity(NamedTuple):
    """The identity of a name server: its name and its epoch."""

    name: str
    epoch: str


class RouteState:
    """The five tables and what goes with them, for all that change them and all that read them.

    There is no lock. A change is prepared on any thread, one at a time, and commits in one step of the event loop.
    Lookups and heartbeats run in between, on the event loop.
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
        self.tables = Tables.empty()
        """The tables now."""
        self.index = TableIndex()
        self.topic_lists = TopicLists(lambda: self.tables, self.index)
        self.intents = IntentTable()
        self.kv_config = KvConfigTable()
        self.change_log = ChangeLog()
        self.digests = RouteDigests(lambda: self.tables, self.index)
        self.doubts: dict[LiveKey, Doubt] = {}
        """Brokers of the live table without proof that they live, and why. Each leaves at its deadline."""
        self.possibly_partial: set[LiveKey] = set()
        """Brokers whose merging registrations have named one topic at most: they may have more."""
        self.frozen = False
        """True from the beginning of a shutdown: the tables do not change."""
        self.is_half_made = False
        """Whether a commit has failed half-way. The name server is about to end."""
        self.granted_seconds = 0.0
        """How much time was granted to everybody so far, because this process did not run."""
        self.clock = clock
        self.expired_time = expired_time
        self.generation = 0
        self.liveness = Liveness(clock, expired_time, new_channel_id)
        self.guard = MassLossGuard(clock)
        self._header_fragment: tuple[int, bytes] = (-1, b"")
        self._new_groups: set[BrokerKey] = set()
        """Groups that the last transaction was to bring."""

    @property
    def revision(self) -> int:
        """Number of the last change; 0 before the first."""
        return self.change_log.last.revision

    def guarded(self) -> tuple[int, int | None]:
        """How many brokers the mass-loss guard holds, and when it releases the last, Unix milliseconds.

        The time is None if it holds none.
        """
        ends = [self.liveness.ends_at_millis(key) for key, why in self.doubts.items() if why is Doubt.GUARD]
        return len(ends), max(ends, default=None)

    @property
    def unconfirmed(self) -> dict[LiveKey, Doubt]:
        """The doubted brokers that rows show as unconfirmed."""
        return {key: why for key, why in self.doubts.items() if why.is_unconfirmed}

    def channel_doubts(self) -> dict[LiveKey, Doubted]:
        """The other doubted brokers, which have not reported since the end of their channel, and when each leaves."""
        doubts = ((key, why) for key, why in self.doubts.items() if not why.is_unconfirmed)
        return {key: Doubted(why, self.liveness.ends_at_millis(key)) for key, why in doubts}

    # What readers ask.

    def route(self, topic: str, zone_name: str | None = None) -> bytes | None:
        """A topic's route as an encoded TopicRouteData (RocketMQ: pickupTopicRouteData); None if there is none.

        With a zone, groups of other zones are left out where their master is live, which may leave an empty route
        (RocketMQ: ZoneRouteRPCHook).
        """
        fragments = self.route_fragments(topic, zone_name)
        return None if fragments is None else b"".join(fragments)

    def route_fragments(self, topic: str, zone_name: str | None = None) -> list[bytes] | None:
        """The same in its fields, each of queues or a group as the one object that the tables hold."""
        tables, find, in_force = self.tables, self.index.queue_datas.of, self.index.queue_datas.in_force
        queues, brokers = tables.topic_queue_table.get(topic), tables.broker_addr_table
        if queues is None:
            return None
        groups = [brokers[find(queue).broker] for queue in queues]
        # No slave stands in where the members of a group look for each other.
        acting = not topic.startswith(SYNC_MEMBER_TOPIC_PREFIX)
        if zone_name is not None:
            kept = [index for index, group in enumerate(groups) if is_in_zone(group, zone_name, acting=acting)]
            queues, groups = tuple(queues[index] for index in kept), [groups[index] for index in kept]
        enabled = self.behaviour.order_message_enable
        order_topic_conf = self.kv_config.get(ORDER_TOPIC_CONFIG, topic) if enabled else None
        parts = [] if order_topic_conf is None else [frame(_ORDER_TOPIC_CONF_NUMBER, order_topic_conf.encode())]
        parts += [in_force.get(queue, queue) for queue in queues]
        parts += [(acting and group.acting_fragment) or group.fragment for group in groups]
        parts += [group.filter_fragment for group in groups if group.filter_fragment]
        return parts

    def header_fragment(self) -> bytes:
        """The NamesrvHeader of the current revision, framed as field 1 of any answer."""
        revision, fragment = self._header_fragment
        if revision != self.revision:
            fragment = frame(1, self.header().SerializeToString())
            self._header_fragment = (self.revision, fragment)
        return fragment

    def header(self) -> route_data_pb2.NamesrvHeader:
        name, epoch = self.identity
        return route_data_pb2.NamesrvHeader(namesrv_name=name, epoch=epoch, revision=self.revision)

    def snapshot(self) -> RouteSnapshot:
        """Tables as they are now, which costs no copy of their rows.

        Raises SHUTTING_DOWN if a commit has failed.
        """
        if self.is_half_made:
            raise shutting_down()
        return RouteSnapshot(
            revision=self.revision,
            header_fragment=self.header_fragment(),
            taken_at_millis=self.clock.wall_millis(),
            tables=self.tables,
            in_force=self.index.queue_datas.in_force,
            last_seen=dict(self.liveness.last_update_millis),
            doubts=self.channel_doubts(),
        )

    def queue_datas_of(self, topic: str) -> list[QueueData]:
        """What the groups of a topic report of it, by group; empty if there is no such topic."""
        return list(map(self.index.queue_datas.of, self.tables.topic_queue_table.get(topic) or ()))

    def is_confirmed(self, live: BrokerLiveInfo) -> bool:
        """Reports whether a broker of the live table has proved that it lives.

        It has not if it comes from a snapshot, if the mass-loss guard holds it, or if its channel has ended and it has
        not reported since. Such an entry is served, but it wins no conflict with a broker that registers.
        """
        return live.key not in self.doubts

    def live_broker(self, broker: BrokerKey, broker_id: int, broker_addr: str) -> BrokerLiveInfo | None:
        """The row of a live broker that says of itself that it is this one; None if there is no such broker here."""
        live = self.tables.broker_live_table.get(LiveKey(broker.cluster_name, broker_addr))
        if live is None or live.broker != broker or live.broker_id != broker_id:
            return None
        return live

    def groups_named(self, broker_name: str, cluster_name: str | None) -> list[BrokerKey]:
        """The groups, registered or with an intent, that an operator may mean."""
        clusters = set(self.index.clusters_by_name.get(broker_name, ()))
        for key in self.intents.intents:
            if isinstance(key, BrokerKey) and key.broker_name == broker_name:
                clusters.add(key.cluster_name)
        return [BrokerKey(name, broker_name) for name in sorted(clusters) if cluster_name in (None, name)]

    def is_absent(self, key: IntentKey) -> bool:
        """Whether an intent waits for a registration: its group is not registered, or no broker reports its topic."""
        if isinstance(key, BrokerKey):
            return key not in self.tables.broker_addr_table
        shown = (queue_data.broker for queue_data in self.queue_datas_of(key.topic))
        brokers = itertools.chain(self.index.held_queue_table.get(key.topic, ()), shown)
        return all(key.cluster_name not in (None, broker.cluster_name) for broker in brokers)

    def topic_count(self, broker: BrokerKey) -> int:
        """Topics that have queues on a group (RocketMQ: wipeTopicCount and addTopicCount)."""
        return len(self.index.topics_by_broker.get(broker, ()))

    # What brokers report and what their channels do: it renews times or ends them, and changes no table.

    def query_data_version(
        self, broker: BrokerKey, broker_id: int, broker_addr: str, data_version: DataVersion
    ) -> tuple[bool, DataVersion | None]:
        """Compares a broker's version with the one held (RocketMQ: QUERY_DATA_VERSION). Renews liveness if equal.

        Returns:
            Whether a registration is needed, and the version held; no version if there is no such broker here. An
            unconfirmed broker needs one, to be bound to its channel again. A broker whose last registration was a
            merging one needs one because its version guarantees nothing.
        """
        live = self.live_broker(broker, broker_id, broker_addr)
        if live is None:
            return True, None
        if not live.version_matches(data_version):
            return True, live.data_version
        self.renew(live)
        return False, live.data_version

    def broker_heartbeat(self, broker: BrokerKey, broker_id: int, broker_addr: str) -> None:
        """Renews liveness (RocketMQ 5: BROKER_HEARTBEAT). Raises BROKER_NOT_REGISTERED, also if unconfirmed."""
        live = self.live_broker(broker, broker_id, broker_addr)
        if live is None or live.unconfirmed:
            raise broker_not_registered(broker.cluster_name, broker.broker_name, broker_addr)
        self.renew(live)

    def renew_unchanged(self, live: BrokerLiveInfo) -> bool:
        """Renews liveness of a broker that a heartbeat or an equal version renewed before, when this was its row.

        Returns whether it still is. If not, nothing is renewed, and the request must be examined in full.
        """
        if self.tables.broker_live_table.get(live.key) is not live:
            return False
        self.renew(live)
        return True

    def open_channel(self) -> str:
        """Opens a channel and returns its id. Raises SHUTTING_DOWN if the tables are frozen."""
        self.check_not_frozen()
        return self.liveness.open_channel()

    def doubt_channel_end(self, channel_id: str, seconds: float, why: Doubt) -> int:
        """Gives the brokers of a channel that has ended some seconds to register again, instead of removing them.

        For ends that may be this name server's own fault. Returns how many brokers that is.
        """
        lives = map(self.tables.broker_live_table.get, self.liveness.take_bound(channel_id))
        doubted = [live.key for live in lives if live is not None and live.channel_id == channel_id]
        for key in doubted:
            self.doubt(key, why, seconds)
        return len(doubted)

    def grant_more_time(self, seconds: float) -> None:
        """Moves all deadlines: the name server itself did not run for so long, so nobody could reach it."""
        self.granted_seconds += seconds
        self.liveness.grant_more_time(seconds)

    # What changes of all kinds share.

    def renew(self, live: BrokerLiveInfo) -> None:
        """A live broker was seen: its time begins anew. An unconfirmed broker stays so until it registers."""
        if not live.unconfirmed:
            self.doubts.pop(live.key, None)
        self.liveness.renew(live)

    def doubt(self, key: LiveKey, why: Doubt, seconds: float) -> None:
        """Keeps a broker without proof, for so long from now."""
        self.doubts[key] = why
        self.liveness.give(key, seconds)

    def load_snapshot(self, messages: Iterable[bytes]) -> LoadedSnapshot:
        """Puts the messages of a snapshot file into empty tables: what this epoch begins with, at revision 0.

        Its brokers are unconfirmed. Each has its own timeout to register again, but no more than the name server's. The
        intents must be in force already; they apply to what the brokers reported. Does not yield: it is for the time
        before anybody listens.

        Raises:
            UnusableSnapshot: The messages are no snapshot; nothing has changed.
        """
        assert not self.revision, "a snapshot is loaded before anything changes"
        assert not self.tables.broker_live_table, "one snapshot is loaded"
        transaction = self.begin(Cause("start"))
        loaded = read_snapshot(messages, transaction)
        transaction.prepare()
        self._publish(transaction)  # without a revision: nobody can have read the state before
        self.liveness.last_update_millis.update(loaded.last_update_millis)
        for key, live in self.tables.broker_live_table.rows():
            self.doubt(key, Doubt.SNAPSHOT_FILE, min(live.timeout_seconds, self.expired_time))
            self.generation = max(self.generation, live.generation)
        return loaded

    def append_change(self, change: Change) -> None:
        """Gives a change that is in force already the next revision. Without rows it does nothing."""
        if change.rows:
            self.change_log.append(change, self.clock.wall_millis())

    def publish_kv_config(self, table: KvConfigTable, cause: Cause) -> None:
        """Makes another KV configuration the current one; it must be durable already. Takes a revision."""
        rows = tuple(KvChange(*difference) for difference in table.differences_from(self.kv_config))
        self.kv_config = table
        self.append_change(Change(cause, rows))

    def publish_behaviour(self, behaviour: Behaviour, cause: Cause, rows: tuple[SettingChange, ...]) -> None:
        """Makes another behaviour the current one; it must be durable already. Takes a revision."""
        self.behaviour = behaviour
        self.append_change(Change(cause, rows))

    def begin(self, cause: Cause, intents: IntentTable | None = None) -> Transaction:
        """A transaction of the tables, which has other intents in force afterwards if some are given.

        Forgets the interned rows of groups that the last transaction named, if that transaction was dropped.
        """
        for broker in self._new_groups:
            if broker not in self.tables.broker_addr_table:
                self.index.queue_datas.forget_group(broker)
        transaction = Transaction(self.tables, self.index, self.behaviour, intents or self.intents, cause)
        self._new_groups = transaction.new_groups
        return transaction

    def commit(self, transaction: Transaction) -> bool:
        """Publishes a transaction. Returns whether anything changed that a reader can see."""
        self._publish(transaction)
        if transaction.change is not None:
            self.append_change(transaction.change)
        return transaction.change is not None

    def _publish(self, transaction: Transaction) -> None:
        self.tables = transaction.after
        update_index(transaction)

    def check_not_frozen(self) -> None:
        if self.frozen:
            raise shutting_down()

    def forget(self, live: BrokerLiveInfo) -> None:
        self.liveness.forget(live.key)
        self.guard.left(live.key)
        self.doubts.pop(live.key, None)
        self.possibly_partial.discard(live.key)
        self.liveness.unbind(live)


# A change of the state has two parts: a long preparation, on any thread, and a short commit on the event loop.

ANY_NUMBER = 1_000_000
"""Stands for the number of topics of a change where that is not known before its preparation."""

ResultT_co = TypeVar("ResultT_co", covariant=True)


class StateChange(Protocol[ResultT_co]):
    """One change. Only one at a time is between the beginning of its preparation and its end."""

    state: RouteState

    @property
    def topics(self) -> int:
        """About how many topics it touches: what its preparation costs."""

    def prepare(self) -> None:
        """Works out what will change, and shows nothing of it. Reads tables, intents and policy; has yield points.

        Raises Refused if it cannot be made.
        """

    def commit(self) -> ResultT_co:
        """Makes it the state, in one step. Checks once more what may have changed since it was prepared.

        Raises Refused if it cannot be made now; then nothing has changed.
        """


# The warm-up after a start: until it is over, a name server cannot say that a topic does not exist.

COMING_BACK_SECONDS = 10.0
"""How long a start waits for brokers that registered after its snapshot file was written: agents come back within 5 s
(reopenLongest), and as much again for their registration."""

ROCKETMQ_COMING_BACK_SECONDS = 35.0
"""The same where RocketMQ's own brokers register: they look for name servers every 3 s and register every 30 s."""


class WarmUp:
    """The time after a start. It ends once, and looking at it is cheap at any time."""

    def __init__(self, state: RouteState, warm_up_seconds: float, *, snapshot_is_complete: bool = False) -> None:
        """Begins with the start of the name server; the snapshot file must be loaded before.

        Args:
            warm_up_seconds: How long it takes without a snapshot file; 0 for not at all. With a file it takes that long
                or ``COMING_BACK_SECONDS``, whichever is shorter, and until all brokers of the file are seen. A file
                with RocketMQ's own brokers has ``ROCKETMQ_COMING_BACK_SECONDS`` instead. Brokers that are connected by
                then and have not registered yet are waited for that long again, at most.
            snapshot_is_complete: Whether the file holds all brokers, as after an orderly end. Then only
                the wait for them counts.
        """
        self._state = state
        self._started_at = state.clock.monotonic()
        self._granted_before = state.granted_seconds
        self.warm_up_seconds = warm_up_seconds
        self._waits_for_brokers = self._has_brokers_of_file()
        self._shortest_seconds = warm_up_seconds
        if self._waits_for_brokers:
            # A broker may have registered after the file was written, and is no less alive for it.
            is_rocketmqs = any(live.topic_by_topic for _, live in state.tables.broker_live_table.rows())
            coming_back_seconds = ROCKETMQ_COMING_BACK_SECONDS if is_rocketmqs else COMING_BACK_SECONDS
            self._shortest_seconds = 0.0 if snapshot_is_complete else min(warm_up_seconds, coming_back_seconds)
        self._is_warm = False

    def is_warm(self) -> bool:
        """Whether the tables have all topics that exist. Once true, true forever.

        With a snapshot file: every broker of it has registered again or was removed, and brokers that registered after
        the file was written have had time to return. A complete file has all brokers. Without a file: the warm-up time
        is over. Time in which this process did not run does not count. When a large fleet returns, its registrations
        are queued, so a broker that is connected is waited for.
        """
        if not self._is_warm:
            granted = self._state.granted_seconds - self._granted_before
            running = self._state.clock.monotonic() - self._started_at - granted
            over_since = running - self._shortest_seconds
            some_register = bool(self._state.liveness.unused) and over_since < self.warm_up_seconds
            self._is_warm = (
                over_since >= 0 and not some_register and not (self._waits_for_brokers and self._has_brokers_of_file())
            )
        return self._is_warm

    def serves(self) -> bool:
        """Whether the routes of a snapshot file were loaded, or the name server is warm. Once true, true forever.

        If so, clients may send lookups, and the snapshot file may be replaced. Unknown topics may exist nevertheless.
        """
        return self._waits_for_brokers or self.is_warm()

    def brokers_to_hear(self) -> int:
        """The number of brokers of the snapshot file that have neither registered again nor been removed."""
        return sum(why is Doubt.SNAPSHOT_FILE for why in tuple(self._state.doubts.values()))

    def _has_brokers_of_file(self) -> bool:
        # They are the first in there, so this does not look at the others.
        return any(why is Doubt.SNAPSHOT_FILE for why in tuple(self._state.doubts.values()))
