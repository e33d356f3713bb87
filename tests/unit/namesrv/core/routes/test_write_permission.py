"""Write permissions that operators take: which topics that touches, and which group is meant."""

from __future__ import annotations

from namesrv.core.model import BrokerKey
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.unit.namesrv.scenarios.groups import GROUP, lift_all, version, wipe


def wiped(fleet: Fleet) -> tuple[int, int, list[str]]:
    """The topics that a wipe changes, those that lose their last writable queue, and a sample. It is lifted again."""
    radius = wipe(fleet).blast_radius
    lift_all(fleet)
    return radius.topics_changed, radius.topics_losing_last_writable_queue, list(radius.sample_topics)


def test_only_topics_of_applications_lose_queues_and_they_are_named_first(fleet: Fleet) -> None:
    own = ["%DLQ%g", "%RETRY%g", "BenchmarkTest", "RMQ_SYS_ROCKSDB_OFFSET_TOPIC", CLUSTER, GROUP.broker_name]
    fleet.register(topics=own)
    assert wiped(fleet) == (len(own), 0, sorted(own))
    fleet.register(version=version(2), topics=[*own, "zebra"])
    fleet.register(B, name="broker-b", topics=["apple"])
    assert wiped(fleet) == (len(own) + 1, 1, ["zebra"])
    fleet.register(B, name="broker-b", version=version(2), topics=["apple", *own, "zebra"])
    assert wiped(fleet) == (len(own) + 1, 0, ["zebra", *sorted(own)])


def test_the_first_hundred_topics_of_the_worst_kind_are_named(fleet: Fleet) -> None:
    topics = [f"t{number:04}" for number in range(2_000)]
    fleet.register(topics=[*reversed(topics), ("a-read-only-one", (4, 4, 4, 0))])
    assert wiped(fleet) == (2_000, 2_000, topics[:100])


def test_groups_of_a_name_are_those_registered_and_those_with_an_intent(fleet: Fleet) -> None:
    gone, other = BrokerKey("gone", "broker-a"), BrokerKey("other", "broker-a")
    for addr, cluster, name in ((A, CLUSTER, "broker-a"), (B, "other", "broker-a"), ("127.0.0.1:1", CLUSTER, "b")):
        fleet.register(addr, cluster=cluster, name=name)
    for group in (gone, BrokerKey("gone", "broker-c"), GROUP):
        wipe(fleet, group)
    assert fleet.state.groups_named("broker-a", None) == [GROUP, gone, other]
    assert fleet.state.groups_named("broker-a", "other") == [other]
    assert fleet.state.groups_named("broker-c", CLUSTER) == []
