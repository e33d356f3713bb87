"""The feed of read-only copies: changes of the tables, and intents, KV configuration, settings and causes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from namesrv_api.v1 import route_data_pb2
from namesrv_internal.v1 import replica_service_pb2 as pb

from namesrv.core.change_stream import CHANGE_SLICE, bookmark, change_to_send, revision_messages
from namesrv.core.changes import (
    Change,
    ChangeLog,
    ClusterPut,
    ClusterRemoved,
    ConfigPut,
    FilterServersPut,
    GroupPut,
    GroupRemoved,
    IntentLifted,
    IntentPut,
    KvPut,
    LivePut,
    LiveRemoved,
    QueuesPut,
    QueuesRemoved,
)
from namesrv.core.encoding import frame, intent_message
from namesrv.core.model import BrokerKey, LiveKey, QueueData
from namesrv.core.policy import Behaviour
from namesrv.core.route_view import RouteView
from namesrv.core.snapshot import ALL_TABLES
from namesrv.core.state import NamesrvIdentity, Unconfirmed
from namesrv.core.watch import Follower

ItemT = TypeVar("ItemT")

_RESPONSE = pb.FollowTablesResponse

READER_SETTINGS = {
    "supportActingMaster": "support_acting_master",
    "orderMessageEnable": "order_message_enable",
}
"""Settings that shape answers to readers: name on the wire to field of Behaviour. All are switches."""

HEARD_SECONDS = 5.0
"""Time between two messages that tell a copy when brokers were heard of: half of their shortest period."""

ROWS_PER_MESSAGE = 500
"""Intents, keys or queues in a message: making it takes about a millisecond."""


class ReplicaFeed:
    """The feed of one copy, which remembers what it has sent of that which is in no change log."""

    def __init__(self, state: RouteView, is_warm: Callable[[], bool], monotonic: Callable[[], float]) -> None:
        self._state = state
        self._is_warm = is_warm
        self._monotonic = monotonic
        self._heard_said_at = monotonic()
        self._heard: dict[LiveKey, int] = {}
        self._held: dict[tuple[str, BrokerKey], QueueData] = {}
        self._held_version = -1
        self._was_warm: bool | None = None

    def opening(self) -> Iterator[bytes]:
        """Encoded messages of the state beyond the tables, which must be that of the snapshot that they go before."""
        state = self._state
        guarded = [key for key, why in state.unconfirmed.items() if why is Unconfirmed.GUARD]
        intents, kv_config, behaviour = state.intents, state.kv_config, state.behaviour
        return map(
            _opening,
            itertools.chain(
                [pb.OpeningRows(settings=_settings(behaviour), warm=self._is_warm())],
                (pb.OpeningRows(guarded_brokers=[_ref(*key) for key in keys]) for keys in _batches(guarded)),
                (pb.OpeningRows(intents=map(intent_message, some)) for some in _batches(intents.intents.values())),
                (
                    pb.OpeningRows(kv_changes=some)
                    for some in _batches(
                        (
                            pb.KvChange(namespace=namespace, key=key, value=value)
                            for namespace, entries in kv_config.namespaces.items()
                            for key, value in entries.items()
                        )
                    )
                ),
            ),
        )

    def messages(self, log: ChangeLog, reader: Follower, identity: NamesrvIdentity) -> Iterator[bytes]:
        """The encoded messages of all changes that a copy has not been sent, the news, then a bookmark.

        An empty message stands for a pause, as in ``follow_messages``. No change is held while a message is being sent.

        Args:
            reader: What has been sent; moves on.

        Raises:
            REVISION_COMPACTED: The change log does not reach back so far.
            Refused: The reader must end.
        """
        while True:
            change = change_to_send(log, reader)
            if change is None:
                yield from self._news()
                if log.last.revision != reader.revision:
                    continue  # rows sent may be of later revisions: the bookmark of this one must not follow
                yield tables_message(bookmark(identity, reader.revision))
                return
            revision, applied_at_millis, rows = change.revision, change.applied_at_millis, change.rows
            yield change_start(change)
            del change
            for message in revision_messages(identity, revision, applied_at_millis, rows, ALL_TABLES):
                yield tables_message(message) if message else b""
            reader.revision = revision
            if revision % CHANGE_SLICE == 0:
                yield b""

    def _news(self) -> Iterator[bytes]:
        """Encoded messages of what has changed, since the last call, without taking a revision."""
        warm = self._is_warm()
        if warm != self._was_warm:
            self._was_warm = warm
            yield _news(pb.News(warm=warm))
        yield from self._heard_brokers()
        tables = self._state.tables
        if self._held_version == tables.held_version:
            return
        begins, self._held_version = self._held_version < 0, tables.held_version
        held = {
            (topic, broker): queue_data
            for topic, holders in tables.held_queue_table.items()
            for broker, queue_data in holders.items()
        }
        before, self._held = self._held, held
        changed = [_held(*place, queue_data) for place, queue_data in held.items() if before.get(place) != queue_data]
        changed += [_held(*place, None) for place in before.keys() - held.keys()]
        for some in _batches(changed):
            yield _news(pb.News(held_queues=some, held_queues_begin=begins))
            begins = False
        if begins:
            yield _news(pb.News(held_queues_begin=True))

    def _heard_brokers(self) -> Iterator[bytes]:
        """When brokers were last heard of, sent now and then: otherwise a copy would show them as silent."""
        now = self._monotonic()
        if now - self._heard_said_at < HEARD_SECONDS:
            return
        self._heard_said_at = now
        before, self._heard = self._heard, self._state.last_heard()
        changed = [(key, millis) for key, millis in self._heard.items() if before.get(key) != millis]
        for some in _batches(changed):
            news = pb.News()
            for (cluster_name, broker_addr), millis in some:
                news.heard_brokers.add(
                    cluster_name=cluster_name, broker_addr=broker_addr, last_update_timestamp_millis=millis
                )
            yield _news(news)


def tables_message(message: bytes) -> bytes:
    """An encoded message of the tables: an encoded StreamRouteSnapshotResponse in the envelope of copies."""
    return frame(_RESPONSE.TABLES_FIELD_NUMBER, message)


def _opening(rows: pb.OpeningRows) -> bytes:
    return _RESPONSE(opening=rows).SerializeToString()


def _news(news: pb.News) -> bytes:
    return _RESPONSE(news=news).SerializeToString()


def change_start(change: Change) -> bytes:
    """The encoded beginning of a change: its cause, and what it did beyond the tables."""
    call, caller, comment = change.cause
    start = pb.ChangeStart(
        revision=change.revision,
        applied_at_millis=change.applied_at_millis,
        cause=pb.ChangeCause(call=call, caller=caller, comment=comment),
    )
    for row in change.rows:
        match row:
            case IntentLifted():
                start.lifted_intents.append(intent_message(row.intent))
            case IntentPut():
                start.intents.append(intent_message(row.intent))
            case KvPut():
                start.kv_changes.add(namespace=row.namespace, key=row.key, value=row.value)
            case ConfigPut():
                start.settings.add(key=row.key, value=row.value)
            case QueuesPut() | QueuesRemoved() | GroupPut() | GroupRemoved() | LivePut() | LiveRemoved():
                pass  # rows of tables are RouteChanges
            case ClusterPut() | ClusterRemoved() | FilterServersPut():
                pass
    return _RESPONSE(change_start=start).SerializeToString()


def _settings(behaviour: Behaviour) -> list[pb.SettingChange]:
    return [
        pb.SettingChange(key=key, value=str(getattr(behaviour, field)).lower())
        for key, field in READER_SETTINGS.items()
    ]


def _held(topic: str, broker: BrokerKey, queue_data: QueueData | None) -> pb.HeldQueues:
    row = pb.HeldQueues(topic=topic, cluster_name=broker.cluster_name, broker_name=broker.broker_name)
    if queue_data is not None:
        row.queue_data.CopyFrom(route_data_pb2.TopicRouteData.FromString(queue_data.fragment).queue_datas[0])
    return row


def _ref(cluster_name: str, broker_addr: str) -> pb.BrokerRef:
    return pb.BrokerRef(cluster_name=cluster_name, broker_addr=broker_addr)


def _batches(items: Iterable[ItemT]) -> Iterator[list[ItemT]]:
    left = iter(items)
    while batch := list(itertools.islice(left, ROWS_PER_MESSAGE)):
        yield batch
