"""A topic's route, joined from the pieces that its groups have encoded already."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2

from groundwork.topic_rules import SYNC_MEMBER_TOPIC_PREFIX
from namesrv.core.records.fragments import frame
from namesrv.core.records.rows import MASTER_ID, BrokerData, TopicQueues
from namesrv.core.tables.schema import Tables

_ORDER_TOPIC_CONF_NUMBER = route_data_pb2.TopicRouteData.ORDER_TOPIC_CONF_FIELD_NUMBER


def join_route(
    tables: Tables,
    topic: str,
    queues: TopicQueues,
    zone_name: str | None = None,
    order_topic_conf: str | None = None,
) -> bytes:
    """An encoded TopicRouteData (RocketMQ: pickupTopicRouteData). The arguments are those of ``route_fragments``."""
    return b"".join(route_fragments(tables, topic, queues, zone_name, order_topic_conf))


def route_fragments(
    tables: Tables,
    topic: str,
    queues: TopicQueues,
    zone_name: str | None = None,
    order_topic_conf: str | None = None,
) -> list[bytes]:
    """The fields of an encoded TopicRouteData, each of queues or a group as the one object that the tables hold.

    Args:
        tables: Where the groups are.
        topic: The topic.
        queues: Its queues, as reported.
        zone_name: Leaves groups of other zones out where their master is live (RocketMQ: ZoneRouteRPCHook).
        order_topic_conf: Its ordered-topic configuration, if the route is to have it.
    """
    brokers, find = tables.broker_addr_table, tables.queue_datas.by_fragment
    groups = [brokers[find[queue].broker] for queue in queues]
    parts = [] if order_topic_conf is None else [frame(_ORDER_TOPIC_CONF_NUMBER, order_topic_conf.encode())]
    if zone_name is not None:
        acting = _may_act(topic)
        kept = [index for index, group in enumerate(groups) if _is_in_zone(group, zone_name, acting=acting)]
        queues, groups = tuple(queues[index] for index in kept), [groups[index] for index in kept]
    in_force = tables.queue_datas.in_force
    if not in_force:
        parts += queues
        parts += [group.fragment for group in groups]
    else:
        parts += [in_force.get(queue, queue) for queue in queues]
        acting = _may_act(topic)
        parts += [(acting and group.acting_fragment) or group.fragment for group in groups]
    parts += [group.filter_fragment for group in groups if group.filter_fragment]
    return parts


def _may_act(topic: str) -> bool:
    """No slave stands in where the members of a group look for each other."""
    return not topic.startswith(SYNC_MEMBER_TOPIC_PREFIX)


def _is_in_zone(group: BrokerData, zone_name: str, *, acting: bool) -> bool:
    """As in RocketMQ, a group that is shown without a master, real or acting, stays whatever its zone."""
    if MASTER_ID not in group.addrs and not (acting and group.acting_fragment):
        return True
    return group.zone_name is not None and group.zone_name.casefold() == zone_name.casefold()
