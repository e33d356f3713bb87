"""Answers that the engine may give again by itself: what they rest on, and which changes make them stale.

An answer is handed over in the step of the event loop that computed it, and a change in the step that published it. So
the engine never has an answer that is older than a change it knows of, and nobody hears of a change before the engine.
"""

from __future__ import annotations

from collections.abc import Iterable

import namesrv_engine

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
    Row,
)
from namesrv.core.model import ORDER_TOPIC_CONFIG, RemovalReason
from namesrv.core.registrations import RouteInfoManager
from namesrv.server.engines.native.call import Call
from namesrv.server.engines.native.metadata import fields_of
from namesrv.server.rpc.kept_answers import CLUSTERS_TAG, group_tag

_PERMITTED = 1
"""The class of callers who may look up; what they are answered does not depend on who they are."""


class KeptAnswers:
    """What the engine answers by itself, for the tables that are served."""

    def __init__(self, engine: namesrv_engine.Engine, *, permits: bool) -> None:
        self._engine = engine
        self._permits = permits
        self._manager: RouteInfoManager | None = None
        self._header = b""
        self._generation = 0

    def serve(self, manager: RouteInfoManager) -> None:
        """Answers are of these tables from now on; those of others are forgotten."""
        self._manager = manager
        self._engine.clear()
        self._change([])
        manager.change_log.listen(lambda change: self._on_change(manager, change))

    @property
    def generation(self) -> int:
        """Of what is computed now."""
        return self._generation

    def put(self, call: Call, message: bytes) -> None:
        """Keeps an answer."""
        if self._manager is None or call.rests_on is None or not message.startswith(self._header):
            return
        tags, generation = call.rests_on
        self._remember(call)
        self._engine.put(call.call, message[len(self._header) :], tags, generation)

    def put_refusal(self, call: Call) -> None:
        """Keeps a status."""
        if self._manager is None or call.rests_on is None:
            return
        tags, generation = call.rests_on
        code: int = call.code().value[0]
        self._remember(call)
        metadata = fields_of(call.trailing_metadata())
        self._engine.put_status(call.call, code, call.details(), metadata, tags, generation)

    def _remember(self, call: Call) -> None:
        # It has passed the gate of its service in this very step.
        if self._permits:
            self._engine.set_class(call.call, _PERMITTED)

    def _on_change(self, manager: RouteInfoManager, change: Change) -> None:
        if manager is not self._manager:
            return
        if any(isinstance(row, ConfigPut) for row in change.rows):  # it may concern every route
            self._engine.clear()
        tags: list[str] = []
        for row in change.rows:
            tags += tags_of(row)
        self._change(tags)

    def _change(self, tags: list[str]) -> None:
        assert self._manager is not None, "only what is served changes"
        self._header = self._manager.header_fragment()
        self._generation = self._engine.change(tags, self._header)


def tags_of(row: Row) -> Iterable[str]:
    """What a row of a change touches. A row may have ten thousand topics, and is read in the step that publishes it."""
    tags: Iterable[str] = ()
    match row:
        case QueuesPut(queues=queues):
            tags = queues
        case QueuesRemoved(broker=broker, reason=RemovalReason.GROUP_GONE):
            tags = (group_tag(broker),)  # each route that loses queues rests on it, and there may be 100,000
        case QueuesRemoved(topics=topics):
            tags = topics
        case GroupPut(after=group) | GroupRemoved(before=group):
            tags = group_tag(group.key), CLUSTERS_TAG
        case FilterServersPut(broker=broker):
            tags = (group_tag(broker),)
        case KvPut(namespace=namespace, key=key) if namespace == ORDER_TOPIC_CONFIG:
            tags = (key,)
        case ClusterPut() | ClusterRemoved():
            tags = (CLUSTERS_TAG,)
        case KvPut() | LivePut() | LiveRemoved() | IntentPut() | IntentLifted() | ConfigPut() | AddressClaimReleased():
            pass  # what of it is in routes is a row of its own
    return tags
