"""Every field of a registration, a group and a live broker: a change of it shows, and it survives a restart."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import Phase, find, settings
from namesrv_api.v1.route_data_pb2 import BrokerAddr

from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    DataVersion,
    LiveKey,
    Member,
    Registration,
    StaticMapping,
)
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.snapshot import RouteSnapshot
from tests.support.core_fleet import CLUSTER, HA, VERSION, A, B, Fleet
from tests.support.state_changes import apply_now
from tests.unit.namesrv.reference_inputs import PARTIAL_REGISTRATIONS, REGISTRATIONS

FIRST = Registration(
    BrokerKey(CLUSTER, "broker-a"), 2, A, VERSION, {"T": (4, 4, 6, 0)}, topic_by_topic=True, enable_acting_master=False
)
"""A slave that says nothing else yet, and whose topics are always read."""

CHANGED: dict[str, Any] = {
    "broker": BrokerKey(CLUSTER, "broker-b"),
    "broker_id": 1,
    "broker_addr": B,
    "data_version": DataVersion(2, 2),
    "topic_configs": {"T": (8, 4, 6, 0)},
    "ha_server_addr": HA,
    "filter_servers": ("10.0.0.1:1",),
    "zone_name": "z",
    "enable_acting_master": True,
    "labels": (("rack", "r1"),),
    "timeout_seconds": 7.0,
    "topic_by_topic": False,
    "mappings": {"T": StaticMapping("__global__", 8, 1, False, ((0, 0),))},
}
NOT_SHOWN = {"channel_id", "base_version", "table_fingerprint"}
"""Fields that tell the name server how to take a registration."""

RENEWED = {"channel_id", "generation"}
"""Fields of a live broker that change with each registration and that no reader sees."""

UNTIL_CONFIRMED = {"unconfirmed"}
"""Fields that a restart changes."""


def register(fleet: Fleet, registration: Registration) -> None:
    apply_now(BrokerRegistration(fleet.state, registration))


def compared(row: BrokerData | BrokerLiveInfo) -> dict[str, Any]:
    passing = RENEWED | UNTIL_CONFIRMED
    if isinstance(row, BrokerData):
        row = replace(row, members=tuple(member._replace(unconfirmed=False) for member in row.members))
    return {each.name: getattr(row, each.name) for each in fields(row) if each.compare and each.name not in passing}


def shown(snapshot: RouteSnapshot) -> object:
    tables = snapshot.tables
    groups = [(group, group.filter_fragment) for group in tables.broker_addr_table.values()]
    return dict(tables.topic_queue_table), groups, [compared(live) for live in tables.broker_live_table.values()]


def test_every_field_of_a_registration_is_here() -> None:
    assert CHANGED.keys() | NOT_SHOWN == {each.name for each in fields(Registration)}
    assert {field.name for field in BrokerAddr.DESCRIPTOR.fields} == set(Member._fields) - UNTIL_CONFIRMED


@pytest.mark.parametrize("name", CHANGED)
def test_the_reference_model_is_tried_with_every_field(name: str) -> None:
    drawn = REGISTRATIONS | PARTIAL_REGISTRATIONS
    first_found = settings(phases=[Phase.generate], database=None)
    find(drawn, lambda one: getattr(one, name) != getattr(FIRST, name), settings=first_found)


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_field_is_a_change_and_survives_a_restart(name: str) -> None:
    fleet, restarted = Fleet(), Fleet()
    register(fleet, FIRST)
    first = fleet.state.snapshot()
    register(fleet, replace(FIRST, **{name: CHANGED[name]}))

    assert fleet.state.revision == first.revision + 1, "a reader of the changes sees it"
    snapshot = fleet.state.snapshot()
    assert shown(first) != shown(snapshot)
    restarted.state.load_snapshot(snapshot.messages())
    tables, loaded = fleet.state.tables, restarted.state.tables
    assert dict(loaded.topic_queue_table) == dict(tables.topic_queue_table)
    assert loaded.filter_server_table == tables.filter_server_table
    for table, loaded_table in (
        (tables.broker_addr_table, loaded.broker_addr_table),
        (tables.broker_live_table, loaded.broker_live_table),
    ):
        assert {key: compared(row) for key, row in loaded_table.items()} == {
            key: compared(row) for key, row in table.items()
        }


@pytest.mark.parametrize("name", [each.name for each in fields(BrokerLiveInfo) if each.init])
def test_a_live_broker_is_the_same_only_if_it_was_renewed(name: str) -> None:
    fleet = Fleet()
    register(fleet, FIRST)
    live = fleet.state.tables.broker_live_table[LiveKey(CLUSTER, A)]
    other: Any = BrokerKey("other", "other") if name == "broker" else object()
    assert live.same_but_renewed(replace(live, **{name: other})) is (name in RENEWED)
