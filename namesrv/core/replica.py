"""A replica's tables: applies the messages of its leader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

from namesrv_api.v1 import admin_service_pb2, route_service_pb2
from namesrv_internal.v1 import replica_service_pb2 as pb

from namesrv.core import copy_size
from namesrv.core.changes import Cause, ConfigPut, IntentLifted, IntentPut, KvPut, Row
from namesrv.core.copy_size import CopySize, check_texts
from namesrv.core.edit import TableEdit
from namesrv.core.encoding import intent_of
from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    Intent,
    IntentTable,
    KvConfigTable,
    LiveKey,
    RemovalReason,
    ReportedTopic,
)
from namesrv.core.pace import paced
from namesrv.core.policy import Behaviour, Clock
from namesrv.core.replica_feed import READER_SETTINGS
from namesrv.core.snapshot_load import LoadedSnapshot, SnapshotReader, group_of, live_of, reported_of
from namesrv.core.state import NamesrvIdentity, RouteState, Unconfirmed

# A read-only copy of another name server's tables, made from its snapshot and the changes after it.
#
# An edit repeats each change of the leader and publishes the same rows. So all that reads tables or the change log
# works on a copy as on the original: lookups, watches, snapshots, digests, explanations. Epoch and revisions are the
# leader's, so a reader of one can resume at the other.

_IN_FORCE_AT_ONCE = frozenset(READER_SETTINGS) - {"supportActingMaster"}
"""Settings that are in force as soon as the leader reports them; the other one, from the leader's next start."""


_NO_BROKER = BrokerKey("", "")


class OutOfStep(Exception):
    """A change does not follow the one before it, or cannot be made here: the copy must be made anew."""


@dataclass(slots=True)
class LeaderChange:
    """All that one revision of the leader changed, once all of its messages have come."""

    start: pb.ChangeStart
    rows: list[route_service_pb2.RouteChange] = field(default_factory=list)


class ReplicaTables:
    """The tables of a copy. Brokers neither register nor expire here: the leader reports all that happens."""

    def __init__(self, identity: NamesrvIdentity, clock: Clock) -> None:
        """Starts empty. The identity has the leader's epoch."""
        self.state = RouteState(identity, clock, _no_channels)
        self.warm = False
        """Whether the leader is warm."""
        self._queue_rows_at_most = 0
        """Rows of queues if none was replaced or removed after the last count."""
        self._broker_rows_at_most = 0
        """The same of rows about brokers."""

    def load(self, snapshot: LoadedSnapshot, opening: pb.OpeningRows, revision: int) -> None:
        """Takes over a whole snapshot, and takes it apart. Nobody may read before it is done.

        ``opening`` has the state beyond the tables. Raises OutOfStep if it cannot be taken over.
        """
        self.state.intents = IntentTable.of(_intents(opening.intents))
        namespaces: dict[str, dict[str, str]] = {}
        for kv in opening.kv_changes:
            namespaces.setdefault(kv.namespace, {})[kv.key] = kv.value
        self.state.kv_config = KvConfigTable.of(namespaces)
        self.state.behaviour = _with_settings(self.state.behaviour, opening.settings, READER_SETTINGS.keys())
        self.warm = opening.warm
        lives_of: dict[BrokerKey, list[LiveKey]] = {}
        for key, live in snapshot.live.items():
            lives_of.setdefault(live.broker, []).append(key)
        for broker, group in snapshot.groups.items():
            edit = self.state.begin_edit()
            edit.put_group(group)
            for key in lives_of.get(broker, ()):
                edit.put_live(snapshot.live[key])
                edit.put_filter_servers(key, snapshot.filter_servers.get(key, ()))
                self.state.liveness.reported(key, snapshot.last_update_millis[key])
            # Each is taken out of the snapshot here, because freeing all of them at once would take 50 ms.
            edit.put_topics(broker, snapshot.topic_configs.pop(broker))
            self.state.publish(edit)
            self.state.settle()
        guarded = {LiveKey(ref.cluster_name, ref.broker_addr) for ref in opening.guarded_brokers}
        for key, live in self.state.tables.broker_live_table.items():
            if live.unconfirmed:
                self.state.unconfirmed[key] = Unconfirmed.GUARD if key in guarded else Unconfirmed.SNAPSHOT_FILE
        self.state.change_log.begin_at(revision)
        self._count_rows()
        self.check_size()

    def check_size(self) -> None:
        """Checks the tables against the limits of a copy. Raises CopyTooLarge if they are over one."""
        tables = self.state.tables
        mapped = tables.queue_datas.mapped_queues()
        if (
            self._queue_rows_at_most + mapped > copy_size.MAX_QUEUE_ROWS
            or self._broker_rows_at_most > copy_size.MAX_BROKER_ROWS
        ):
            self._count_rows()
        held = sum(map(len, tables.held_queue_table.values()))
        CopySize(
            topics=len(tables.topic_queue_table),
            queue_rows=self._queue_rows_at_most + mapped,
            broker_rows=self._broker_rows_at_most,
            other_rows=len(self.state.intents.intents) + self.state.kv_config.key_count + held,
            kv_bytes=self.state.kv_config.byte_size,
        ).check()

    def _count_rows(self) -> None:
        """Counts what is there. That takes milliseconds, so it is done only where a limit could be exceeded."""
        tables = self.state.tables
        self._queue_rows_at_most = sum(map(len, tables.topics_by_broker.values()))
        groups, filters = tables.broker_addr_table.values(), tables.filter_server_table.values()
        self._broker_rows_at_most = _rows_about_brokers(groups, filters) + len(tables.broker_live_table)

    def note_size(self, edit: TableEdit) -> None:
        """Counts what an edit puts, as if all of it were new."""
        self._queue_rows_at_most += sum(map(len, edit.put.values()))
        groups = (group for group in edit.groups.values() if group is not None)
        self._broker_rows_at_most += _rows_about_brokers(groups, edit.filters.values()) + len(edit.live)

    def change(self, change: LeaderChange) -> ReplicaChange:
        """Makes a change of the leader."""
        return ReplicaChange(self, change)

    def take_news(self, news: pb.News) -> News:
        """Takes over what has changed at the leader without taking a revision."""
        return News(self, news)

    def put_news(self, news: pb.News) -> None:
        """Puts news in force. Raises CopyTooLarge."""
        if news.HasField("warm"):
            self.warm = news.warm
        for heard in news.heard_brokers:
            key = LiveKey(heard.cluster_name, heard.broker_addr)
            if key in self.state.tables.broker_live_table:
                self.state.liveness.reported(key, heard.last_update_timestamp_millis)
        if not (news.held_queues_begin or news.held_queues):
            return
        table = self.state.tables.held_queue_table
        if news.held_queues_begin:
            table.clear()
        for row in news.held_queues:
            check_texts(row.topic, row.cluster_name, row.broker_name)
            broker = BrokerKey(row.cluster_name, row.broker_name)
            holders = table.setdefault(row.topic, {})
            if row.HasField("queue_data"):
                holders[broker] = self.state.tables.queue_datas.intern(broker, reported_of(row.queue_data))
            else:
                holders.pop(broker, None)
            if not holders:
                del table[row.topic]
        self.state.tables.held_version += 1
        self.check_size()

    def note_lives(self, edit: TableEdit, applied_at_millis: int) -> None:
        for key, live in edit.live.items():
            if live is None:
                self.state.liveness.forget(key)
                self.state.unconfirmed.pop(key, None)
                continue
            self.state.liveness.reported(key, applied_at_millis)
            if live.unconfirmed:  # brokers of a snapshot file were there before the first change
                self.state.unconfirmed[key] = Unconfirmed.GUARD
            else:
                self.state.unconfirmed.pop(key, None)


class ReplicaChange:
    """The change that repeats one of the leader."""

    def __init__(self, tables: ReplicaTables, change: LeaderChange) -> None:
        self.state = tables.state
        self._tables = tables
        self._change = change

    @property
    def topics(self) -> int:
        return len(self._change.rows)

    def prepare(self) -> None:
        """Raises OutOfStep if it is not the one after the last, or cannot be made."""
        change, state = self._change, self.state
        if change.start.revision != state.revision + 1:
            raise OutOfStep(f"revision {change.start.revision} does not follow {state.revision}")
        self._beyond = _rows_beyond(change.start)
        self._intents = _with_intents(state.intents, self._beyond)
        self._edit = state.begin_edit(self._intents)
        _put_rows(self._edit, change.rows)
        self._edit.prepare()

    def commit(self) -> list[None]:
        """Raises CopyTooLarge if the tables are over a limit now."""
        start, state, edit = self._change.start, self.state, self._edit
        state.intents = self._intents
        state.kv_config = _with_kv_changes(state.kv_config, start.kv_changes)
        state.behaviour = _with_settings(state.behaviour, start.settings, _IN_FORCE_AT_ONCE)
        rows = (*state.publish(edit), *self._beyond)
        cause = start.cause
        self._tables.note_lives(edit, start.applied_at_millis)
        self._tables.note_size(edit)
        texts = (text[: copy_size.MAX_CAUSE_LENGTH] for text in (cause.call, cause.caller, cause.comment))
        state.change_log.append(start.applied_at_millis, Cause(*texts), rows)
        self._tables.check_size()
        return []


class News:
    """Takes over from the leader what its revisions do not cover: when brokers were heard, and held topics."""

    def __init__(self, tables: ReplicaTables, news: pb.News) -> None:
        self.state = tables.state
        self._tables = tables
        self._news = news

    topics = 0

    def prepare(self) -> None:
        pass

    def commit(self) -> list[None]:
        """Raises CopyTooLarge."""
        self._tables.put_news(self._news)
        return []


def _rows_about_brokers(groups: Iterable[BrokerData], filter_servers: Iterable[Collection[str]]) -> int:
    return sum(1 + len(group.addrs) for group in groups) + sum(map(len, filter_servers))


def _no_channels() -> str:
    raise AssertionError("channels are opened at the leader")


def _intents(messages: Iterable[admin_service_pb2.Intent]) -> list[Intent]:
    try:
        return [intent_of(message) for message in messages]
    except ValueError as error:
        raise OutOfStep(f"the leader has a kind of intent that this version does not know: {error}") from error


def _rows_beyond(start: pb.ChangeStart) -> tuple[Row, ...]:
    """The rows of a change that are of no table of the routes."""
    return (
        *map(IntentLifted, _intents(start.lifted_intents)),
        *map(IntentPut, _intents(start.intents)),
        *(KvPut(kv.namespace, kv.key, kv.value if kv.HasField("value") else None) for kv in start.kv_changes),
        *(ConfigPut(setting.key, setting.value) for setting in start.settings),
    )


def _with_intents(before: IntentTable, rows: Iterable[Row]) -> IntentTable:
    intents = dict(before.intents)
    for row in rows:
        if isinstance(row, IntentLifted | IntentPut):
            intents.pop(row.intent.key, None)
        if isinstance(row, IntentPut):
            intents[row.intent.key] = row.intent
    return before if intents == before.intents else IntentTable(intents)


def _with_kv_changes(table: KvConfigTable, changes: Iterable[pb.KvChange]) -> KvConfigTable:
    for kv in changes:
        if kv.HasField("value"):
            table = table.with_value(kv.namespace, kv.key, kv.value)
        else:
            table = table.without(kv.namespace, kv.key)
    return table


def _with_settings(behaviour: Behaviour, changes: Iterable[pb.SettingChange], in_force: Collection[str]) -> Behaviour:
    for setting in changes:
        if setting.key in in_force:
            behaviour = replace(behaviour, **{READER_SETTINGS[setting.key]: setting.value == "true"})
    return behaviour


def _put_rows(edit: TableEdit, rows: Iterable[route_service_pb2.RouteChange]) -> None:
    """Has an edit make the changes that rows tell of. Clusters come and go with their groups."""
    for (kind, broker, reason), same in groupby(rows, _sort_of):
        match kind:
            case "topic_put":
                check_texts(*broker)
                edit.put_topics(broker, (_topic_put(row.topic_put) for row in same))
            case "topic_removed":
                edit.remove_queues(broker, [row.topic_removed.topic for row in same], RemovalReason(reason))
            case _:
                _put_broker_rows(edit, same)


def _put_broker_rows(edit: TableEdit, rows: Iterable[route_service_pb2.RouteChange]) -> None:
    for row in paced(rows):
        match row.WhichOneof("row"):
            case "broker_put":
                edit.put_group(group_of(row.broker_put))
            case "group_removed":
                group = row.group_removed
                key = BrokerKey(group.cluster_name, group.broker_name)
                edit.remove_group(key, RemovalReason(group.reason))
            case "live_put":
                edit.put_live(live_of(row.live_put))
            case "broker_removed":
                gone = row.broker_removed
                live = edit.tables.broker_live_table[LiveKey(gone.cluster_name, gone.broker_addr)]
                edit.remove_live(live, RemovalReason(gone.reason))
            case "filter_put":
                filters = row.filter_put
                check_texts(filters.cluster_name, filters.broker_addr, *filters.filter_servers)
                holder = LiveKey(filters.cluster_name, filters.broker_addr)
                edit.put_filter_servers(holder, tuple(filters.filter_servers))
            case _:
                pass  # clusters come and go with their groups, and no table here has what only a newer leader knows


def _topic_put(row: route_service_pb2.TopicQueues) -> ReportedTopic:
    check_texts(row.topic)
    return row.topic, reported_of(row.queue_datas[0])


def _sort_of(row: route_service_pb2.RouteChange) -> tuple[str, BrokerKey, int]:
    """Rows that come together and have this in common are taken over at once."""
    match row.WhichOneof("row"):
        case "topic_put":
            queue_data = row.topic_put.queue_datas[0]
            return "topic_put", BrokerKey(queue_data.cluster_name, queue_data.broker_name), 0
        case "topic_removed":
            gone = row.topic_removed
            return "topic_removed", BrokerKey(gone.cluster_name, gone.broker_name), gone.reason
        case _:
            return "", _NO_BROKER, 0


# The intake of a copy: it turns the messages of its leader's stream into changes, one after the other.


class ReplicaIntake:
    """Fills a copy from a snapshot, then makes the leader's changes in it. One for each copy."""

    def __init__(self, new_tables: Callable[[NamesrvIdentity], ReplicaTables], name: str | None) -> None:
        """Starts before the first message of a snapshot. Without a name, the copy has its leader's."""
        self._new_tables = new_tables
        self._name = name
        self._reader: SnapshotReader | None = SnapshotReader(of_leader=True)
        self._opening = pb.OpeningRows()
        self._change: LeaderChange | None = None
        self.tables: ReplicaTables | None = None
        """The copy; None before its snapshot is whole."""
        self.caught_up = False
        """Whether the last message was a bookmark: the copy is now as the leader was when it sent it."""

    def stream_ended(self) -> None:
        """The stream begins again after the copy's revision: what has come of the next revision comes again."""
        self._change = None

    def let_go(self) -> None:
        """Frees a snapshot that is not whole, with breaths. Callers must take in nothing afterwards."""
        if self._reader is not None:
            self._reader.let_go()

    def take(self, message: pb.FollowTablesResponse) -> Iterator[ReplicaChange | News]:
        """Takes one message in, and gives the changes that it makes: at most one, once the snapshot is whole.

        Afterwards ``caught_up`` says whether the message was a bookmark.

        Raises:
            UnusableSnapshot: The snapshot is none.
            OutOfStep: A change does not follow the one before it.
            CopyTooLarge: The leader has more than a copy keeps.
        """
        self.caught_up = False
        content = message.WhichOneof("content")
        if self.tables is None:
            self._take_snapshot(content, message)
            return
        match content:
            case "tables":
                yield from self._take_tables(self.tables, message.tables)
            case "change_start":
                yield from self._change_made(self.tables)
                self._change = LeaderChange(message.change_start)
            case "news":
                yield self.tables.take_news(message.news)
            case _:
                raise OutOfStep(f"the leader sends {content or 'something unknown'} where changes are due")

    def _take_snapshot(self, content: str | None, message: pb.FollowTablesResponse) -> None:
        reader = self._reader
        assert reader is not None, "it is there until the snapshot is whole"
        match content:
            case "opening":
                self._opening.MergeFrom(message.opening)
                opening = self._opening
                CopySize(
                    broker_rows=len(opening.guarded_brokers), other_rows=len(opening.intents) + len(opening.kv_changes)
                ).check()
            case "tables":
                reader.take(message.tables)
                reader.size.check()
            case _:
                raise OutOfStep(f"the leader sends {content or 'something unknown'} where a snapshot is due")
        if reader.is_whole:
            header = message.tables.header
            tables = self._new_tables(NamesrvIdentity(self._name or header.namesrv_name, header.epoch))
            tables.load(reader.finish(), self._opening, header.revision)
            self.tables, self._reader, self._opening = tables, None, pb.OpeningRows()

    def _take_tables(
        self, tables: ReplicaTables, message: route_service_pb2.StreamRouteSnapshotResponse
    ) -> Iterator[ReplicaChange]:
        """Takes rows of the change under way, or a bookmark."""
        header = message.header
        if not message.HasField("changes"):
            raise OutOfStep("the leader sends a snapshot where changes are due")
        if header.epoch != tables.state.identity.epoch:
            raise OutOfStep(f"the epoch is {header.epoch} now")
        if message.changes.changes:
            if self._change is None or self._change.start.revision != header.revision:
                raise OutOfStep(f"rows of revision {header.revision} come without its beginning")
            self._change.rows += message.changes.changes
            return
        yield from self._change_made(tables)
        if header.revision != tables.state.revision:
            raise OutOfStep(f"the bookmark is of revision {header.revision}, the copy of {tables.state.revision}")
        self.caught_up = True

    def _change_made(self, tables: ReplicaTables) -> Iterator[ReplicaChange]:
        """Gives the change under way, whose messages have all come."""
        if self._change is not None:
            change, self._change = self._change, None
            yield tables.change(change)
