"""Routes as a zone sees them: scenarios of upstream's ZoneRouteRPCHookTest."""

from __future__ import annotations

import asyncio

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.errors import Reason
from namesrv_common.topic_names import SYNC_MEMBER_TOPIC_PREFIX
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import A, B, addrs_of
from tests.support.refusals import refuses
from tests.unit.namesrv.scenarios.groups import ReplicatedFleet, version
from tests.unit.namesrv.servicers import route_servicer

C = "127.0.0.1:30911"


@pytest.fixture
def fleet() -> ReplicatedFleet:
    """A master in each of two zones, and a slave of the second zone whose group has no master."""
    fleet = ReplicatedFleet(acting=False)
    fleet.register(A, name="group-a", zone_name="zone1", filter_servers=("f:1",))
    fleet.register(B, name="group-b", zone_name="zone2", filter_servers=("f:2",))
    fleet.register(C, 1, name="group-c", zone_name="zone2", filter_servers=("f:3",), enable_acting_master=False)
    return fleet


def route_of(fleet: ReplicatedFleet, zone_name: str | None, topic: str = "TopicTest") -> route_data_pb2.TopicRouteData:
    request = pb.GetTopicRouteRequest(topic=topic, zone_name=zone_name)
    answer = asyncio.run(route_servicer(fleet).lookups.GetTopicRoute(request, CONTEXT))
    return pb.GetTopicRouteResponse.FromString(answer).route


def groups(route: route_data_pb2.TopicRouteData) -> list[str]:
    return [group.broker_name for group in route.broker_datas]


def test_a_lookup_that_names_no_zone_has_all_groups(fleet: ReplicatedFleet) -> None:
    """Scenario 61: what is not asked from a zone stays untouched."""
    assert route_of(fleet, None) == fleet.route()
    assert groups(route_of(fleet, None)) == ["group-a", "group-b", "group-c"]


def test_masters_of_other_zones_leave_with_their_queues_and_filter_servers(fleet: ReplicatedFleet) -> None:
    """Scenario 61: a group without a master stays, whatever its zone."""
    route = route_of(fleet, "ZONE1")
    assert groups(route) == ["group-a", "group-c"]
    assert [queue.broker_name for queue in route.queue_datas] == ["group-a", "group-c"]
    assert [servers.broker_addr for servers in route.filter_servers] == [A, C]


def test_a_zone_without_any_group_of_a_topic_has_an_empty_route_and_no_error(fleet: ReplicatedFleet) -> None:
    """Scenario 61. An unknown topic is an error there as everywhere."""
    fleet.register(A, name="group-a", zone_name="zone1", topics=("only-in-zone1",), version=version(2))
    assert route_of(fleet, "zone2", "only-in-zone1") == route_data_pb2.TopicRouteData()
    with refuses(Reason.TOPIC_NOT_FOUND):
        route_of(fleet, "zone2", "unknown")


def test_a_zone_with_an_empty_name_is_refused(fleet: ReplicatedFleet) -> None:
    """Scenario 61. Upstream passes over a blank zone; here a client that asks by zone says which."""
    with refuses(Reason.INVALID_FIELD, match="zone_name"):
        route_of(fleet, "")


def test_a_slave_that_stands_in_counts_as_the_master_of_its_zone() -> None:
    fleet = ReplicatedFleet()
    fleet.register(B, 1, zone_name="zone2", enable_acting_master=True)
    assert addrs_of(route_of(fleet, "zone2").broker_datas[0]) == {0: B}
    assert groups(route_of(fleet, "zone1")) == []


def test_groups_find_their_members_in_any_zone_where_no_slave_stands_in() -> None:
    """A route without a master stays, and the topics by which members find each other never have an acting one."""
    fleet = ReplicatedFleet()
    topic = f"{SYNC_MEMBER_TOPIC_PREFIX}broker-a"
    fleet.register(B, 1, topics=(topic,), zone_name="zone2", enable_acting_master=True)
    assert addrs_of(route_of(fleet, "zone1", topic).broker_datas[0]) == {1: B}
