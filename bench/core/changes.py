"""Registrations of every size, and brokers that fall silent: how long they hold up everything else."""

from __future__ import annotations

import time

from namesrv_api.v1 import registration_service_pb2

from bench.core.sizes import Sizes
from bench.core.steps import (
    WARM_UP_TOPICS,
    frozen,
    millis_since,
    new_manager,
    read_and_registered,
    register,
    step_millis,
)
from bench.figures import Sample
from bench.probes.pauses import Pauses
from bench.workload import registration
from namesrv.app.writer import collecting
from namesrv.core.model import BrokerKey, RegisterBrokerResult, Registration
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import Sliced, run_sync
from namesrv.core.state import BROKER_CHANNEL_EXPIRED_TIME
from namesrv.grpc_api import registration as registration_module
from namesrv.remoting.bodies import read_registration
from tests.support.virtual_clock import VirtualClock

_BETWEEN_BROKERS_SECONDS = 0.001


def registrations(sizes: Sizes) -> list[Sample]:
    """One broker's whole table: for the first time, again, with one change, with everything changed."""
    topics = range(sizes.registration_topics)
    requests = {
        "first": registration(0, topics),
        "unchanged": registration(0, topics),
        "one topic changed": registration(0, topics, counter=2, changed=range(1)),
        "all topics changed": registration(0, topics, counter=3, changed=range(1, sizes.registration_topics)),
    }
    run_sync(register(new_manager(), registration(0, range(WARM_UP_TOPICS))))
    manager = new_manager()
    workload = f"full registration of {sizes.registration_topics:,} topics"
    samples = []
    with frozen():
        for name, request in requests.items():
            began = time.perf_counter()
            run_sync(register(manager, request))
            samples.append(Sample(workload, name, "ms", millis_since(began)))
    assert manager.revision == 3, "the unchanged registration changes nothing, the others do"
    return samples


def slices(sizes: Sizes) -> list[Sample]:
    """How long a very large registration holds up everything else: parsing it, and in a step."""
    topics = range(sizes.slice_topics)
    requests = {
        "first": registration(0, topics),
        "changed": registration(0, topics, counter=2, changed=topics),
    }
    run_sync(register(new_manager(), registration(0, range(WARM_UP_TOPICS))))
    manager = new_manager()
    samples = []
    with frozen():
        for name, data in requests.items():
            workload = f"one registration of {sizes.slice_topics:,} topics, {name}"
            pauses = Pauses()
            with pauses:
                began = time.perf_counter()
                request = registration_service_pb2.RegisterBrokerRequest.FromString(data)
                parse = millis_since(began)
                held_up = list(step_millis(collecting(read_and_registered(manager, request))))
            samples += [
                Sample(workload, "parsing the message", "ms", parse),
                Sample(workload, "longest step", "ms", max(held_up)),
                Sample(workload, "longest time that the event loop is held up", "ms", max(parse, *held_up)),
                Sample(workload, "longest garbage collection meanwhile", "ms", pauses.longest_millis),
                Sample(workload, "all together", "ms", parse + sum(held_up)),
            ]
    return samples


def static_topic(sizes: Sizes) -> list[Sample]:
    """How long the mapping of one static topic holds up everything else, as RocketMQ writes and registers it."""
    manager = new_manager()
    run_sync(_read_as_rocketmq(manager, _static_topic_body(1)))
    samples = []
    with frozen():
        for name, shift in {"first": 0, "moved": 1, "again": 1}.items():
            workload = f"one static topic of {sizes.mapped_queues:,} queues, {name}"
            data = _static_topic_body(sizes.mapped_queues, shift)
            held_up = list(step_millis(collecting(_read_as_rocketmq(manager, data))))
            samples += [
                Sample(workload, "longest step", "ms", max(held_up)),
                Sample(workload, "all together", "ms", sum(held_up)),
            ]
    assert manager.revision == 3, "the small one, the first and the moved change something"
    return samples


def expiry(sizes: Sizes) -> list[Sample]:
    """Many brokers fall silent at once while the others live on. None has topics.

    All registered within seconds, as after a restart of the name server, so all first deadlines come up in one scan.
    """
    clock = VirtualClock()
    manager = new_manager(clock)
    brokers = [_without_own_timeout(broker) for broker in range(sizes.expiry_brokers)]
    identities = []
    for request in brokers:
        clock.seconds += _BETWEEN_BROKERS_SECONDS  # equal deadlines would be sorted by name, which is slow and rare
        run_sync(read_and_registered(manager, request))
        identities.append(registration_module.broker_identity(request.broker))
    all_registered = clock.seconds
    clock.seconds += BROKER_CHANNEL_EXPIRED_TIME / 2
    for identity in identities[sizes.expiring_brokers :]:
        clock.seconds += _BETWEEN_BROKERS_SECONDS
        manager.broker_heartbeat(*identity)
    clock.seconds = all_registered + BROKER_CHANNEL_EXPIRED_TIME + 1
    with frozen():
        held_up = list(step_millis(collecting(manager.scan_not_active_broker())))
    left = len(manager.tables.broker_live_table)
    assert left == sizes.expiry_brokers - sizes.expiring_brokers, f"{left} brokers are left"
    workload = f"expiry of {sizes.expiring_brokers:,} of {sizes.expiry_brokers:,} brokers"
    return [
        Sample(workload, "all together", "ms", sum(held_up)),
        Sample(workload, "longest time that the event loop is held up", "ms", max(held_up)),
    ]


def _static_topic_body(queues: int, shift: int = 0) -> bytes:
    """The body of REGISTER_BROKER with one static topic. Numbers as keys have no quotes, as fastjson has it."""
    ids = ",".join(f"{queue}:{queue + shift}" for queue in range(queues))
    mapping = f'{{"bname":"broker","currIdMap":{{{ids}}},"dirty":false,"epoch":1,"scope":"__global__","topic":"static"'
    topic = '"perm":6,"readQueueNums":8,"topicName":"static","topicSysFlag":0,"writeQueueNums":8'
    return (
        f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{"static":{{{topic}}}}},'
        f'"topicQueueMappingInfoMap":{{"static":{mapping},"totalQueues":{queues}}}}}}}}}'
    ).encode()


def _read_as_rocketmq(manager: RouteInfoManager, data: bytes) -> Sliced[RegisterBrokerResult]:
    """What the front of RocketMQ's protocol does with a body."""
    body = yield from read_registration(data, 0, manager.tables.topic_queue_table)
    registration = Registration(
        broker=BrokerKey("cluster", "broker"),
        broker_id=0,
        broker_addr="10.0.0.1:10911",
        data_version=body.data_version,
        topic_configs=body.topic_configs,
        topic_by_topic=True,
        mappings=body.mappings,
    )
    return (yield from manager.register_broker(registration))


def _without_own_timeout(broker: int) -> registration_service_pb2.RegisterBrokerRequest:
    request = registration_service_pb2.RegisterBrokerRequest.FromString(registration(broker, range(0)))
    request.ClearField("heartbeat_timeout_millis")
    return request
