"""Whether anybody can write a topic, with the drains of operators and without them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from namesrv_api.v1 import admin_service_pb2, route_data_pb2

WRITE, READ = 2, 4


class GroupKey(NamedTuple):
    """One broker group."""

    cluster: str
    broker: str


def drains(intents: Iterable[admin_service_pb2.Intent]) -> dict[GroupKey, admin_service_pb2.Intent]:
    """The drains among intents that are in force, by group."""
    kind = admin_service_pb2.Intent.KIND_WIPE_WRITE_PERM
    return {GroupKey(one.cluster_name, one.broker_name): one for one in intents if one.kind == kind}


def lacks_writable_queue(
    route: route_data_pb2.TopicRouteData, restored: Collection[GroupKey] = (), drained: Collection[GroupKey] = ()
) -> bool:
    """Whether nobody can write a topic that somebody is meant to.

    A topic that may be neither read nor written on any broker is none of these: RocketMQ's brokers of release 5 have
    one each (``rmq_sys_SYNC_BROKER_MEMBER_...``, permission 1).

    Args:
        route: A topic's route.
        restored: Groups that are taken to have the permission that they report.
        drained: Groups that are taken to have no write permission.
    """
    if not any(_perm(queues, restored) & (READ | WRITE) for queues in route.queue_datas):
        return False
    masters = {
        GroupKey(group.cluster_name, group.broker_name)
        for group in route.broker_datas
        if any(broker.broker_id == 0 for broker in group.broker_addrs)
    }.difference(drained)
    return not any(
        queues.write_queue_nums > 0 and _perm(queues, restored) & WRITE and group_of(queues) in masters
        for queues in route.queue_datas
    )


def group_of(queues: route_data_pb2.QueueData) -> GroupKey:
    """The group that has queues of a topic."""
    return GroupKey(queues.cluster_name, queues.broker_name)


def _perm(queues: route_data_pb2.QueueData, restored: Collection[GroupKey]) -> int:
    return queues.reported_perm if queues.HasField("reported_perm") and group_of(queues) in restored else queues.perm
