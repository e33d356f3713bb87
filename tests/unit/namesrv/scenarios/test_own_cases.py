"""Cases that upstream's tests lack: what it gets wrong, and what is decided otherwise here."""

from __future__ import annotations

import pytest

from namesrv.core.changes import GroupChange, LiveChange
from namesrv.core.errors import Reason
from namesrv.core.journal import summary
from namesrv.core.model import Behaviour, DataVersion, LiveKey, RemovalReason
from namesrv_common.topic_names import Labels
from tests.support.core_fleet import CLUSTER, VERSION, A, B, Fleet, addrs_of
from tests.support.refusals import refuses
from tests.unit.namesrv.scenarios.groups import (
    OTHER_CLUSTER,
    ReplicatedFleet,
    all_topics,
    delete_topic,
    hold,
    known_route,
    lift_all,
    names,
    perms,
    version,
    wipe,
)

C = "127.0.0.1:30911"


def everything(fleet: Fleet) -> object:
    """All that a reader can see."""
    return b"".join(fleet.state.snapshot().messages())


# A deposed master


@pytest.mark.parametrize("deposed_version", [version(9, state_version=1), version(9)])
def test_a_deposed_master_is_refused_and_nothing_has_changed(fleet: Fleet, deposed_version: DataVersion) -> None:
    """Upstream keeps what it did before the check, so that the address vanishes from its group."""
    fleet.register(A, 0, version=version(1, state_version=1))
    fleet.register(B, 1, version=version(1, state_version=1))
    fleet.register(C, 2, version=version(1, state_version=1))
    fleet.register(B, 0, version=version(2, state_version=2))
    before = everything(fleet)
    with refuses(Reason.STALE_STATE_VERSION):
        fleet.register(C, 0, version=deposed_version)
    assert everything(fleet) == before
    assert fleet.addrs() == {0: B, 2: C}


# Intents of operators, and what registrations bring


def test_a_first_registration_of_a_single_topic_is_taken(fleet: Fleet) -> None:
    """Upstream 5 refuses it, for it cannot tell it from an increment; here an increment names its base."""
    assert fleet.register(topics=("TopicTest",)).changed
    assert all_topics(fleet) == ["TopicTest"]


@pytest.mark.parametrize("registration", ["the same version", "another version", "after it unregistered"])
def test_a_wipe_survives_every_registration(fleet: Fleet, registration: str) -> None:
    """Upstream forgets it when the version changes or the broker comes again (its #1377, #313)."""
    fleet.register()
    wipe(fleet)
    if registration == "after it unregistered":
        fleet.unregister()
    fleet.register(version=VERSION if registration == "the same version" else version(2))
    assert perms(fleet) == [4]
    assert known_route(fleet).queue_datas[0].reported_perm == 6
    lift_all(fleet)
    assert perms(fleet) == [6]


def test_a_wipe_covers_topics_that_come_later_also_by_an_increment(fleet: Fleet) -> None:
    """Upstream restores what an increment carries, and only that."""
    fleet.register(topics=("T",))
    wipe(fleet)
    fleet.register(topics=("T", "T1"), version=version(2), base_version=VERSION)
    assert (perms(fleet, "T"), perms(fleet, "T1")) == ([4], [4])


def test_the_permission_that_a_stand_in_lacks_is_back_with_the_same_version_when_nobody_stands_in() -> None:
    """Upstream 5 takes it from the rows themselves, where it lacks until the version changes (its #7600, #7626)."""
    fleet = ReplicatedFleet()
    fleet.master("TopicTest")
    fleet.slave("TopicTest")
    fleet.unregister(A)
    assert (perms(fleet), known_route(fleet).queue_datas[0].reported_perm) == ([4], 6)
    fleet.register(B, 1, enable_acting_master=False)
    assert perms(fleet) == [6]
    assert not known_route(fleet).queue_datas[0].HasField("reported_perm")
    assert fleet.addrs() == {1: B}


def test_a_topic_deleted_here_stays_away_until_the_next_version(fleet: Fleet) -> None:
    """As in RocketMQ 4; in version 5 it is back with the next heartbeat."""
    fleet.register(topics=("T", "T1"))
    delete_topic(fleet, "T")
    fleet.register(topics=("T", "T1"))
    assert all_topics(fleet) == ["T1"]
    fleet.register(topics=("T", "T1"), version=version(2))
    assert all_topics(fleet) == ["T", "T1"]


def test_a_topic_deleted_here_is_back_at_once_if_registrations_are_taken_exactly() -> None:
    """As in version 5: with deleteTopicWithBrokerRegistration, routes are what the last registration says."""
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=True))
    fleet.register(topics=("T", "T1"))
    delete_topic(fleet, "T")
    fleet.register(topics=("T", "T1"))
    assert all_topics(fleet) == ["T", "T1"]


@pytest.mark.parametrize("exactly", [False, True])
def test_a_held_topic_stays_away_whatever_registers_and_comes_back_as_reported(exactly: bool) -> None:
    """Upstream has no such thing (its #288, #7052, #7884)."""
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=exactly))
    fleet.register(topics=("T", "T1"))
    hold(fleet, "T")
    fleet.register(topics=[("T", (8, 8, 6, 0)), ("T1", (4, 4, 6, 0))], version=version(2))
    fleet.register(B, name="broker-b", topics=("T",))
    assert all_topics(fleet) == ["T1"]
    lift_all(fleet)
    assert names(fleet, "T") == ["broker-a", "broker-b"]
    assert [queue.read_queue_nums for queue in known_route(fleet, "T").queue_datas] == [8, 4]


def test_an_equal_version_changes_topics_if_registrations_are_taken_exactly() -> None:
    """As in RocketMQ 5, which deletes under an equal version, too, and takes what it has not got."""
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=True))
    fleet.register(topics=("T", "T1"))
    assert fleet.register(topics=("T", "T2")).changed
    assert all_topics(fleet) == ["T", "T2"]


def test_an_increment_deletes_nothing_even_if_registrations_are_taken_exactly() -> None:
    """Upstream takes an increment for all there is and deletes the rest, unless the broker is told to send no such."""
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=True))
    fleet.register(topics=("T", "T1"))
    fleet.register(topics=("T2",), version=version(2), base_version=VERSION)
    assert all_topics(fleet) == ["T", "T1", "T2"]


def test_a_slaves_topics_are_ignored(fleet: Fleet) -> None:
    """RocketMQ 4."""
    fleet.register(A)
    fleet.register(B, 1, topics=("TopicTest", "only-on-the-slave"), version=version(7))
    assert all_topics(fleet) == ["TopicTest"]


def test_a_registration_that_names_no_zone_and_no_acting_master_leaves_the_groups_as_they_are(fleet: Fleet) -> None:
    """Upstream takes absent for false and none, so that any old slave takes them from its group."""
    fleet.register(A, zone_name="zone-1", enable_acting_master=True)
    fleet.register(B, 1)
    (group,) = known_route(fleet).broker_datas
    assert (group.zone_name, group.enable_acting_master) == ("zone-1", True)


# Labels, which RocketMQ does not have

R1: Labels = (("rack", "r1"),)
R2: Labels = (("rack", "r2"), ("row", "7"))


def labels_of(fleet: Fleet) -> list[dict[str, str]]:
    """Of each broker of the only group."""
    (group,) = known_route(fleet).broker_datas
    return [dict(broker.labels) for broker in group.broker_addrs]


def test_other_labels_under_the_same_version_are_a_change(fleet: Fleet) -> None:
    fleet.register(labels=R1)
    fleet.register(B, 1)
    revision = fleet.state.revision
    assert fleet.register(labels=R2).changed
    assert labels_of(fleet) == [dict(R2), {}]
    change = fleet.state.change_log.after(revision)
    assert change is not None
    assert {type(row) for row in change.rows} == {GroupChange, LiveChange}
    assert summary(change).endswith("labels are rack=r2 (id 0), row=7 (id 0) now")
    assert not fleet.register(labels=R2).changed


@pytest.mark.parametrize(("said", "left"), [(None, R1), ((), ())])
def test_no_labels_leave_those_of_a_broker_and_empty_ones_remove_them(
    fleet: Fleet, said: Labels | None, left: Labels
) -> None:
    fleet.register(labels=R1)
    fleet.register(labels=said)
    assert labels_of(fleet) == [dict(left)]


# Late words about a broker that has come back


def test_a_late_unregistration_of_an_old_generation_spares_the_fresh_registration(fleet: Fleet) -> None:
    """Upstream's #11043."""
    old = fleet.register()
    new = fleet.register()
    assert fleet.unregister(generation=old.generation) is None
    assert fleet.addrs() == {0: A}
    assert fleet.unregister(generation=new.generation) is not None


# Brokers that share something


def test_all_brokers_of_one_channel_leave_with_it_at_once(fleet: Fleet) -> None:
    """Upstream finds the first by its channel and leaves the others to the scan."""
    channel_id = fleet.state.open_channel()
    fleet.register(A, channel_id=channel_id)
    fleet.register(B, name="broker-b", channel_id=channel_id)
    fleet.register(C, name="broker-c")
    assert [gone.live.broker_addr for gone in fleet.end_channel(channel_id)] == [A, B]
    assert names(fleet) == ["broker-c"]


@pytest.mark.parametrize("silent", ["broker-a", "broker-b"])
def test_a_silent_broker_leaves_alone_though_it_shares_a_channel(fleet: Fleet, silent: str) -> None:
    """RocketMQ 4 looks the expired channel up again and finds the other broker by it."""
    channel_id = fleet.state.open_channel()
    brokers = {"broker-a": A, "broker-b": B}
    for name, addr in brokers.items():
        fleet.register(addr, name=name, channel_id=channel_id)
    fleet.clock.advance(100.0)
    other = next(name for name in brokers if name != silent)
    fleet.query(brokers[other], name=other)
    fleet.clock.advance(20.001)
    assert [gone.live.broker.broker_name for gone in fleet.scan()] == [silent]
    assert names(fleet) == [other]
    assert [gone.live.broker.broker_name for gone in fleet.end_channel(channel_id)] == [other]


def test_the_end_of_a_channel_takes_one_of_two_clusters_that_share_an_address(fleet: Fleet) -> None:
    """RocketMQ 4 has one live entry for both."""
    here, there = fleet.state.open_channel(), fleet.state.open_channel()
    fleet.register(A, channel_id=here)
    fleet.register(A, cluster=OTHER_CLUSTER, channel_id=there)
    assert [gone.live.key for gone in fleet.end_channel(here)] == [LiveKey(CLUSTER, A)]
    (group,) = known_route(fleet).broker_datas
    assert (group.cluster_name, addrs_of(group)) == (OTHER_CLUSTER, {0: A})


def test_a_broker_that_is_renamed_leaves_its_old_group_and_goes_as_one(fleet: Fleet) -> None:
    """Upstream lists the address under both names, and a channel's end cleans one of them (its #1989)."""
    old, new = fleet.state.open_channel(), fleet.state.open_channel()
    fleet.register(A, channel_id=old, topics=("T", "old"))
    result = fleet.register(A, name="renamed", channel_id=new, topics=("T",))
    assert [(gone.live.broker.broker_name, gone.reason) for gone in result.replaced] == [
        ("broker-a", RemovalReason.REPLACED)
    ]
    assert (names(fleet, "T"), all_topics(fleet)) == (["renamed"], ["T"])
    assert fleet.end_channel(old) == []
    assert fleet.unregister(A) is None
    assert len(fleet.end_channel(new)) == 1
    assert not fleet.state.tables.broker_addr_table


# What slaves learn


def test_a_slave_learns_no_master_before_there_is_one_and_after_it_left(fleet: Fleet) -> None:
    """The agent takes a master address from any name server that has one, so this pauses no slave (upstream's does)."""
    assert fleet.register(B, 1).master_addr is None
    fleet.register(A)
    assert fleet.register(B, 1).master_addr == A
    fleet.unregister(A)
    assert fleet.register(B, 1).master_addr is None
