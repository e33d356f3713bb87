"""The feed of read-only copies beyond the tables: intents, KV configuration, settings, causes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.changes import (
    AddressClaimReleased,
    Change,
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
from namesrv.core.encoding import intent_message
from namesrv.core.model import BrokerKey, LiveKey, QueueData
from namesrv.core.policy import Behaviour
from namesrv.core.route_view import RouteView
from namesrv.core.state import Unconfirmed

ItemT = TypeVar("ItemT")

_ROWS = route_service_pb2.ReplicaRows

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
        """Encoded ReplicaRows: what there is at this moment, which must be that of the snapshot that they go before."""
        state = self._state
        guarded = [key for key, why in state.unconfirmed.items() if why is Unconfirmed.GUARD]
        intents, kv_config, behaviour = state.intents, state.kv_config, state.behaviour
        return itertools.chain(
            [_ROWS(settings=_settings(behaviour), warm=self._is_warm()).SerializeToString()],
            (_ROWS(guarded_brokers=[_ref(*key) for key in keys]).SerializeToString() for keys in _batches(guarded)),
            (
                _ROWS(intents=map(intent_message, some)).SerializeToString()
                for some in _batches(intents.intents.values())
            ),
            (
                _ROWS(kv_changes=some).SerializeToString()
                for some in _batches(
                    (
                        route_service_pb2.KvChange(namespace=namespace, key=key, value=value)
                        for namespace, entries in kv_config.namespaces.items()
                        for key, value in entries.items()
                    )
                )
            ),
        )

    def of_change(self, change: Change) -> bytes:
        """A change's ReplicaRows, encoded: its cause, and what it did beyond the tables."""
        call, caller, comment = change.cause
        rows = _ROWS(cause=route_service_pb2.ChangeCause(call=call, caller=caller, comment=comment))
        for row in change.rows:
            match row:
                case IntentLifted():
                    rows.lifted_intents.append(intent_message(row.intent))
                case IntentPut():
                    rows.intents.append(intent_message(row.intent))
                case KvPut():
                    rows.kv_changes.add(namespace=row.namespace, key=row.key, value=row.value)
                case ConfigPut():
                    rows.settings.add(key=row.key, value=row.value)
                case AddressClaimReleased():
                    rows.released_address_claims.add(
                        cluster_name=row.key.cluster_name,
                        broker_addr=row.key.broker_addr,
                        broker_name=row.broker.broker_name,
                        broker_id=row.broker_id,
                    )
                case QueuesPut() | QueuesRemoved() | GroupPut() | GroupRemoved() | LivePut() | LiveRemoved():
                    pass  # rows of tables are RouteChanges
                case ClusterPut() | ClusterRemoved() | FilterServersPut():
                    pass
        return rows.SerializeToString()

    def news(self) -> Iterator[bytes]:
        """Encoded ReplicaRows: what has changed, since this was asked last, without taking a revision."""
        warm = self._is_warm()
        if warm != self._was_warm:
            self._was_warm = warm
            yield _ROWS(warm=warm).SerializeToString()
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
            yield _ROWS(held_queues=some, held_queues_begin=begins).SerializeToString()
            begins = False
        if begins:
            yield _ROWS(held_queues_begin=True).SerializeToString()

    def _heard_brokers(self) -> Iterator[bytes]:
        """When brokers were last heard of, sent now and then: otherwise a copy would show them as silent."""
        now = self._monotonic()
        if now - self._heard_said_at < HEARD_SECONDS:
            return
        self._heard_said_at = now
        before, self._heard = self._heard, self._state.last_heard()
        changed = [(key, millis) for key, millis in self._heard.items() if before.get(key) != millis]
        for some in _batches(changed):
            rows = _ROWS()
            for (cluster_name, broker_addr), millis in some:
                rows.heard_brokers.add(
                    cluster_name=cluster_name, broker_addr=broker_addr, last_update_timestamp_millis=millis
                )
            yield rows.SerializeToString()


def _settings(behaviour: Behaviour) -> list[route_service_pb2.SettingChange]:
    return [
        route_service_pb2.SettingChange(key=key, value=str(getattr(behaviour, field)).lower())
        for key, field in READER_SETTINGS.items()
    ]


def _held(topic: str, broker: BrokerKey, queue_data: QueueData | None) -> route_service_pb2.HeldQueues:
    row = route_service_pb2.HeldQueues(topic=topic, cluster_name=broker.cluster_name, broker_name=broker.broker_name)
    if queue_data is not None:
        row.queue_data.CopyFrom(route_data_pb2.TopicRouteData.FromString(queue_data.fragment).queue_datas[0])
    return row


def _ref(cluster_name: str, broker_addr: str) -> route_service_pb2.BrokerRef:
    return route_service_pb2.BrokerRef(cluster_name=cluster_name, broker_addr=broker_addr)


def _batches(items: Iterable[ItemT]) -> Iterator[list[ItemT]]:
    left = iter(items)
    while batch := list(itertools.islice(left, ROWS_PER_MESSAGE)):
        yield batch
