"""Answers that an engine may give again by itself, as the servicers see it: they say what an answer rests on.

A tag is a topic, a broker group, or all clusters. Engines without a cache pass over all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from namesrv.core.model import BrokerKey
from namesrv.core.registrations import RouteInfoManager

CLUSTERS_TAG = "\0"
"""What an answer rests on that tells of all clusters and groups."""

KEPT_METHODS = frozenset(
    f"/namesrv_api.v1.RouteService/{name}" for name in ("GetTopicRoute", "BatchGetTopicRoutes", "GetBrokerClusterInfo")
)
"""Calls whose answers may be kept."""


def serve_from(server: object, manager: RouteInfoManager) -> None:
    """Has a server keep answers of these tables, if it can."""
    if hasattr(server, "keep_answers_of"):
        server.keep_answers_of(manager)


def may_keep(context: object, tags: Callable[[], Sequence[str]]) -> None:
    """Says what the answer to a call rests on, if its engine keeps answers. It must be given in this very step."""
    if hasattr(context, "may_keep"):
        context.may_keep(tags())


def route_tags(manager: RouteInfoManager, topic: str) -> list[str]:
    """What a topic's route rests on: the topic, and the groups that have queues of it."""
    queues = manager.tables.topic_queue_table.get(topic) or ()
    find = manager.tables.queue_datas.by_fragment
    return [topic, *(group_tag(find[queue].broker) for queue in queues)]


def group_tag(broker: BrokerKey) -> str:
    """The tag of a group; no topic begins so."""
    return f"\0{broker.cluster_name}\0{broker.broker_name}"
