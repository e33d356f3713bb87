"""A change says how large it is before it is prepared: small ones are made on the event loop."""

from __future__ import annotations

import pytest

from namesrv.app.writer import INLINE_TOPICS
from namesrv.core.model import BrokerKey, QueueNumbers, Registration, ReportedQueues, StaticMapping
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.removals import BROKERS_PER_CHANGE, scan_not_active_broker
from tests.support.core_fleet import VERSION, A, Fleet

NUMBERS: QueueNumbers = (8, 8, 6, 0)


def mapping(queues: int) -> StaticMapping:
    return StaticMapping("__global__", queues, 1, False, tuple((queue, queue) for queue in range(queues)))


def registration(queues: int, *, topic_by_topic: bool) -> Registration:
    static = mapping(queues)
    said: ReportedQueues = NUMBERS if topic_by_topic else (*NUMBERS, static)
    return Registration(
        broker=BrokerKey("cluster", "broker"),
        broker_id=0,
        broker_addr=A,
        data_version=VERSION,
        topic_configs={"static": said},
        topic_by_topic=topic_by_topic,
        mappings={"static": static} if topic_by_topic else {},
    )


@pytest.mark.parametrize("topic_by_topic", [False, True])
def test_a_registration_of_one_static_topic_is_as_large_as_its_mapping(fleet: Fleet, topic_by_topic: bool) -> None:
    small, large = (registration(queues, topic_by_topic=topic_by_topic) for queues in (8, 10_000))
    assert BrokerRegistration(fleet.state, small).topics == 1
    assert BrokerRegistration(fleet.state, large).topics > INLINE_TOPICS


@pytest.mark.parametrize(("brokers", "is_small"), [(1, True), (BROKERS_PER_CHANGE, False)])
def test_many_brokers_without_topics_are_a_large_removal(fleet: Fleet, brokers: int, is_small: bool) -> None:
    for number in range(brokers):
        fleet.register(f"10.0.0.{number}:10911", topics=(), name=f"broker-{number}")
    fleet.clock.advance(121.0)
    removal = next(scan_not_active_broker(fleet.state))
    assert (removal.topics <= INLINE_TOPICS) is is_small
