"""The reference model's operators' changes, and the routes that it expects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1.admin_service_pb2 import BlastRadius

from namesrv.core.model import ORDER_TOPIC_CONFIG, BrokerKey, LiveKey, StaticMapping, WriteRule, perm_under
from namesrv_common.topic_names import application_first, is_application
from tests.unit.namesrv.reference_model import ReferenceModel

SYNC_MEMBER_TOPIC = "rmq_sys_SYNC_BROKER_MEMBER_a"
"""No slave stands in for its master here."""


def without_topic(model: ReferenceModel, topic: str, cluster_name: str | None) -> ReferenceModel:
    """The model after a deletion: what is held stays held."""
    kept = {
        (name, group): numbers
        for (name, group), numbers in model.queues.items()
        if name != topic or cluster_name not in (None, group.cluster_name) or model.is_held((name, group))
    }
    return replace(model, queues=kept)


def without_brokers(model: ReferenceModel, keys: Collection[LiveKey]) -> ReferenceModel:
    """The model after these have gone."""
    after = replace(model, brokers=dict(model.brokers), facts=dict(model.facts), filters=dict(model.filters))
    for key in keys:
        after.remove(key)
    return after


def moved_queues(before: ReferenceModel, after: ReferenceModel) -> int:
    """Groups that lost queues of a topic, or have them again."""
    return len(before.shown().keys() ^ after.shown().keys())


def blast_radius(before: ReferenceModel, after: ReferenceModel) -> BlastRadius:
    """What differs in the routes of the two."""
    queues_before, queues_after = before.shown(), after.shown()
    addrs_before, addrs_after = before.group_addrs(), after.group_addrs()
    changed, losing, vanishing = set(), set(), set()
    named_after = {name for group in addrs_before for name in group}
    for topic in {topic for topic, _ in [*queues_before, *queues_after]}:
        owners_before = {group for name, group in queues_before if name == topic}
        owners_after = {group for name, group in queues_after if name == topic}
        if (
            owners_before == owners_after
            and all(addrs_before[group] == addrs_after[group] for group in owners_after)
            and all(queue_data(before, topic, group) == queue_data(after, topic, group) for group in owners_after)
        ):
            continue
        changed.add(topic)
        if not owners_after:
            vanishing.add(topic)
        elif _is_writable(before, topic) and not _is_writable(after, topic) and is_application(topic, named_after):
            losing.add(topic)
    worst = vanishing or losing or changed
    return BlastRadius(
        topics_changed=len(changed),
        topics_losing_last_writable_queue=len(losing),
        topics_vanishing=len(vanishing),
        sample_topics=application_first(worst, named_after),
    )


def _is_writable(model: ReferenceModel, topic: str) -> bool:
    shown = model.shown()
    datas = [queue_data(model, topic, group) for name, group in shown if name == topic]
    return any(data.write_queue_nums and data.perm & 2 for data in datas)


def queue_data(model: ReferenceModel, topic: str, group: BrokerKey) -> route_data_pb2.QueueData:
    """Queues as they are in force."""
    read, write, perm, flag, *mapping = model.queues[topic, group]
    in_force = perm_under(model.rule_of(group), perm)
    return route_data_pb2.QueueData(
        broker_name=group.broker_name,
        cluster_name=group.cluster_name,
        read_queue_nums=read,
        write_queue_nums=write,
        perm=in_force,
        topic_sys_flag=flag,
        reported_perm=None if in_force == perm else perm,
        mapping=mapping_message(mapping[0]) if mapping else None,
    )


def mapping_message(mapping: StaticMapping) -> route_data_pb2.StaticTopicMapping:
    """A static topic's mapping as clients get it."""
    message = route_data_pb2.StaticTopicMapping(
        scope=mapping.scope, total_queue_nums=mapping.total_queues, epoch=mapping.epoch, dirty=mapping.is_dirty
    )
    for topic_queue_id, broker_queue_id in mapping.queue_ids:
        message.topic_queue_ids.append(topic_queue_id)
        message.broker_queue_ids.append(broker_queue_id)
    return message


def expected_route(model: ReferenceModel, topic: str, zone_name: str | None = None) -> route_data_pb2.TopicRouteData:
    """The route of a topic that has queues."""
    expected = route_data_pb2.TopicRouteData()
    if model.behaviour.order_message_enable and (ORDER_TOPIC_CONFIG, topic) in model.kv:
        expected.order_topic_conf = model.kv[ORDER_TOPIC_CONFIG, topic]
    owners = sorted(owner for name, owner in model.shown() if name == topic)
    groups = model.group_addrs()
    shown = {owner: _ids_shown(model, topic, owner) for owner in owners}
    if zone_name is not None:
        owners = [
            owner
            for owner in owners
            if 0 not in shown[owner].values() or (model.facts[owner][0] or "").upper() == zone_name.upper()
        ]
    expected.queue_datas.extend(queue_data(model, topic, owner) for owner in owners)
    for owner in owners:
        zone, acting = model.facts[owner]
        data = expected.broker_datas.add(
            cluster_name=owner.cluster_name, broker_name=owner.broker_name, zone_name=zone, enable_acting_master=acting
        )
        for broker_id, addr in sorted(groups[owner].items()):
            broker = model.brokers[LiveKey(owner.cluster_name, addr)]
            data.broker_addrs.add(broker_id=shown[owner][broker_id], broker_addr=addr, labels=dict(broker.labels))
            if broker.unconfirmed:
                data.unconfirmed_broker_ids.append(shown[owner][broker_id])
    return expected


def _ids_shown(model: ReferenceModel, topic: str, group: BrokerKey) -> dict[int, int]:
    """Each broker id as the topic's readers see it: the lowest slave may stand in for the master."""
    ids = {broker_id: broker_id for broker_id in model.group_addrs()[group]}
    acts = model.is_acted_for(group) and model.rule_of(group) is not WriteRule.ADDED
    if acts and topic != SYNC_MEMBER_TOPIC:
        ids[min(ids)] = 0
    return ids
