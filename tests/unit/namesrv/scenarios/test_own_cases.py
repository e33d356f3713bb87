"""Cases that upstream's tests lack: what it gets wrong, and what is decided otherwise here."""

from __future__ import annotations

import pytest

from namesrv.core.errors import Reason
from namesrv.core.model import Behaviour, DataVersion, RemovalReason
from tests.support.core_fleet import VERSION, A, B, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.scenarios.groups import (
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


def test_a_topic_deleted_here_stays_away_until_the_next_version(fleet: Fleet) -> None:
    """As in RocketMQ 4; in version 5 it is back with the next heartbeat."""
    fleet.register(topics=("T", "T1"))
    delete_topic(fleet, "T")
    fleet.register(topics=("T", "T1"))
    assert all_topics(fleet) == ["T1"]
    fleet.register(topics=("T", "T1"), version=version(2))
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
