"""Labels of brokers, from the request to routes, changes and digests. RocketMQ has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.core.changes import Cause, Change, FilterServersChange, GroupChange, LiveChange
from namesrv.core.errors import Reason
from namesrv.core.journal import summary
from namesrv.core.model import BrokerKey, BrokerLiveInfo, DataVersion, LiveKey, RegisterBrokerResult, Registration
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.removals import scan_not_active_broker
from namesrv.grpc_api.registration import read_registration
from namesrv_common.labels import MAX_LABELS, Labels
from tests.support.core_fleet import CLUSTER, SMALL_FLEETS, VERSION, A, B, Fleet
from tests.support.refusals import refuses
from tests.support.state_changes import apply_all_now, apply_now
from tests.unit.namesrv.scenarios.groups import ReplicatedFleet, known_route, version
from tests.unit.namesrv.worlds.fleet_digests import made

__all__ = ["made"]  # pytest finds the fixture by its name in this module

R1: Labels = (("rack", "r1"),)
R2: Labels = (("rack", "r2"), ("row", "7"))
FIRST = Registration(BrokerKey(CLUSTER, "broker-a"), 0, A, VERSION, {"TopicTest": (4, 4, 6, 0)})


def register(fleet: Fleet, labels: Labels | None, **more: Any) -> RegisterBrokerResult:
    return apply_now(BrokerRegistration(fleet.state, replace(FIRST, labels=labels, **more)))


def shown(fleet: Fleet) -> list[dict[str, str]]:
    """The labels of each broker of the route."""
    return [dict(one.labels) for group in known_route(fleet).broker_datas for one in group.broker_addrs]


def read(labels: dict[str, str] | None) -> Labels | None:
    """The labels of a request."""
    request = pb.RegisterBrokerRequest(
        broker=route_data_pb2.BrokerIdentity(cluster_name="c", broker_name="b", broker_id=0, broker_addr=A),
        data_version=route_data_pb2.DataVersion(timestamp_millis=1, counter=1),
        labels=None if labels is None else pb.BrokerLabels(labels=labels),
    )
    return read_registration(request).labels


def test_labels_of_a_request_are_absent_empty_or_checked() -> None:
    most = {f"key-{number:02}": "v" for number in range(MAX_LABELS)}
    assert (read(None), read({}), read(most)) == (None, (), tuple(most.items()))
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        read({**most, "one-more": ""})
    assert caught.value.metadata == {"name": "labels of a broker", "value": "17", "limit": "16"}
    with refuses(Reason.INVALID_FIELD, match=r"labels\.labels: has the key 'rack', whose value has 64 characters"):
        read({"rack": "v" * 64})


def test_other_labels_under_the_same_version_are_a_change(fleet: Fleet) -> None:
    register(fleet, R1)
    fleet.register(B, 1)
    revision = fleet.state.revision
    assert register(fleet, R2).changed
    assert shown(fleet) == [dict(R2), {}]
    change = fleet.state.change_log.after(revision)
    assert change is not None
    assert {type(row) for row in change.rows} == {GroupChange, LiveChange}
    assert summary(change).endswith("labels are rack=r2 (id 0), row=7 (id 0) now")
    assert not register(fleet, R2).changed


@pytest.mark.parametrize(("said", "left"), [(None, R1), ((), ())])
def test_no_labels_leave_those_of_a_broker_and_empty_ones_remove_them(
    fleet: Fleet, said: Labels | None, left: Labels
) -> None:
    register(fleet, R1)
    register(fleet, said, data_version=version(2))
    assert shown(fleet) == [dict(left)]


def test_a_broker_that_registers_over_both_protocols_keeps_the_labels_of_its_agent(fleet: Fleet) -> None:
    """Else they would change with each registration."""
    register(fleet, R1)
    revision = fleet.state.revision
    for _ in range(2):
        register(fleet, None, topic_by_topic=True)
        register(fleet, R1)
        assert shown(fleet) == [dict(R1)]
    changes = fleet.state.change_log.newest_first()[: fleet.state.revision - revision]
    assert not any(isinstance(row, GroupChange) for change in changes for row in change.rows)


def test_labels_leave_with_their_broker(fleet: Fleet) -> None:
    register(fleet, R1)
    fleet.unregister()
    register(fleet, None)
    assert shown(fleet) == [{}]


def test_a_slave_that_stands_in_has_its_own_labels() -> None:
    fleet = ReplicatedFleet()
    register(fleet, R1, enable_acting_master=True)
    register(fleet, R2, broker_addr=B, broker_id=1, enable_acting_master=True)
    fleet.unregister(A)
    assert (fleet.addrs(), shown(fleet)) == ({0: B}, [dict(R2)])


def test_brokers_that_the_guard_keeps_or_brings_back_have_their_labels() -> None:
    fleet = Fleet(replace(SMALL_FLEETS, mass_loss_hold_seconds=600.0))
    for number in range(5):
        fleet.clock.advance(number)
        broker = BrokerKey(CLUSTER, f"broker-{number}")
        register(fleet, R1, broker=broker, broker_addr=f"10.0.0.{number}:1")
    for _ in range(20):
        fleet.clock.advance(10.0)
        apply_all_now(scan_not_active_broker(fleet.state))
    route = known_route(fleet)
    assert sum(len(group.unconfirmed_broker_ids) for group in route.broker_datas) == 5
    assert shown(fleet) == [dict(R1)] * 5
    assert fleet.state.tables.broker_live_table[LiveKey(CLUSTER, "10.0.0.0:1")].labels == R1


def test_filter_servers_count_in_the_bound_of_the_change_log_as_labels_do() -> None:
    def weight(*servers: str) -> int:
        row = FilterServersChange(LiveKey(CLUSTER, A), None, servers, broker=FIRST.broker)
        return Change(Cause("RegisterBroker"), (row,)).weight

    assert (weight(), weight("f:1", "f" * 158 + ":1")) == (2, 2 + 1 + 3)


def test_labels_count_in_the_bound_of_the_change_log_by_number_and_length() -> None:
    def weight(labels: Labels) -> int:
        live = BrokerLiveInfo(FIRST.broker, 0, A, None, DataVersion(1, 1), None, 1, 120.0, labels=labels)
        return Change(Cause("RegisterBroker"), (LiveChange(live.key, None, live),)).weight

    assert (weight(()), weight(R2)) == (2, 4)
    assert weight((("k" * 240, "v" * 80),)) == 2 + 1 + 4
