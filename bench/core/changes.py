"""Registrations of every size, and brokers that fall silent: how long they hold up everything else."""

from __future__ import annotations

from namesrv_api.v1 import registration_service_pb2

from bench.core.sizes import Sizes
from bench.core.steps import (
    WARM_UP_TOPICS,
    ChangeTimes,
    frozen,
    new_routes,
    read_and_register,
    register,
)
from bench.figures import Sample
from bench.probes.pauses import Pauses
from bench.workload import registration
from namesrv.core.model import BrokerKey, Registration
from namesrv.core.routes import Routes
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
    register(new_routes(), registration(0, range(WARM_UP_TOPICS)))
    routes = new_routes()
    workload = f"full registration of {sizes.registration_topics:,} topics"
    samples = []
    with frozen():
        for name, request in requests.items():
            times = ChangeTimes()
            register(routes, request, times)
            samples.append(Sample(workload, name, "ms", times.all_millis))
    assert routes.state.revision == 3, "the unchanged registration changes nothing, the others do"
    return samples


def large_registrations(sizes: Sizes) -> list[Sample]:
    """How long a very large registration takes, and how long it holds up everything else."""
    topics = range(sizes.large_topics)
    requests = {
        "first": registration(0, topics),
        "changed": registration(0, topics, counter=2, changed=topics),
    }
    register(new_routes(), registration(0, range(WARM_UP_TOPICS)))
    routes = new_routes()
    samples = []
    with frozen():
        for name, data in requests.items():
            workload = f"one registration of {sizes.large_topics:,} topics, {name}"
            pauses, times = Pauses(), ChangeTimes()
            with pauses:
                register(routes, data, times)
            samples += [
                Sample(workload, "parsing, preparing and merging", "ms", times.thread_millis),
                Sample(workload, "longest commit", "ms", max(times.loop_millis)),
                Sample(workload, "longest garbage collection meanwhile", "ms", pauses.longest_millis),
                Sample(workload, "all together", "ms", times.all_millis),
            ]
    return samples


def static_topic(sizes: Sizes) -> list[Sample]:
    """How long the mapping of one static topic takes, as RocketMQ writes and registers it."""
    routes = new_routes()
    _register_as_rocketmq(routes, _static_topic_body(1), ChangeTimes())
    samples = []
    with frozen():
        for name, shift in {"first": 0, "moved": 1, "again": 1}.items():
            workload = f"one static topic of {sizes.mapped_queues:,} queues, {name}"
            data, times = _static_topic_body(sizes.mapped_queues, shift), ChangeTimes()
            _register_as_rocketmq(routes, data, times)
            samples += [
                Sample(workload, "longest commit", "ms", max(times.loop_millis)),
                Sample(workload, "all together", "ms", times.all_millis),
            ]
    assert routes.state.revision == 3, "the small one, the first and the moved change something"
    return samples


def expiry(sizes: Sizes) -> list[Sample]:
    """Many brokers fall silent at once while the others live on. None has topics.

    All registered within seconds, as after a restart of the name server, so all first deadlines come up in one scan.
    """
    clock = VirtualClock()
    routes = new_routes(clock)
    brokers = [_without_own_timeout(broker) for broker in range(sizes.expiry_brokers)]
    identities = []
    for request in brokers:
        clock.seconds += _BETWEEN_BROKERS_SECONDS  # equal deadlines would be sorted by name, which is slow and rare
        read_and_register(routes, request, ChangeTimes())
        identities.append(registration_module.broker_identity(request.broker))
    all_registered = clock.seconds
    clock.seconds += BROKER_CHANNEL_EXPIRED_TIME / 2
    for identity in identities[sizes.expiring_brokers :]:
        clock.seconds += _BETWEEN_BROKERS_SECONDS
        routes.heartbeats.broker_heartbeat(*identity)
    clock.seconds = all_registered + BROKER_CHANNEL_EXPIRED_TIME + 1
    times = ChangeTimes()
    with frozen():
        changes = routes.removals.scan_not_active_broker()
        while (change := times.on_thread(lambda: next(changes, None))) is not None:
            times.make(change)
    left = len(routes.state.tables.broker_live_table)
    assert left == sizes.expiry_brokers - sizes.expiring_brokers, f"{left} brokers are left"
    workload = f"expiry of {sizes.expiring_brokers:,} of {sizes.expiry_brokers:,} brokers"
    return [
        Sample(workload, "all together", "ms", times.all_millis),
        Sample(workload, "longest commit", "ms", max(times.loop_millis)),
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


def _register_as_rocketmq(routes: Routes, data: bytes, times: ChangeTimes) -> None:
    """Reads and registers a body, as the front of RocketMQ's protocol does."""
    known = routes.state.tables.topic_queue_table
    body = times.on_thread(lambda: read_registration(data, 0, known))
    registration = Registration(
        broker=BrokerKey("cluster", "broker"),
        broker_id=0,
        broker_addr="10.0.0.1:10911",
        data_version=body.data_version,
        topic_configs=body.topic_configs,
        topic_by_topic=True,
        mappings=body.mappings,
    )
    times.make(routes.registrations.register_broker(registration))


def _without_own_timeout(broker: int) -> registration_service_pb2.RegisterBrokerRequest:
    request = registration_service_pb2.RegisterBrokerRequest.FromString(registration(broker, range(0)))
    request.ClearField("heartbeat_timeout_millis")
    return request
