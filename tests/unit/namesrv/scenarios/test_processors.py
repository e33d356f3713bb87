"""Scenarios of upstream's RequestProcessorTest, KVConfigManagerTest and their like, without a network.

Those that need a process or a disk are in tests/integration/namesrv.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from zlib import crc32

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as adm
from namesrv_api.v1 import registration_service_pb2 as reg
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.errors import Reason
from namesrv.core.model import EMPTY, ORDER_TOPIC_CONFIG, DataVersion, KvConfigTable
from namesrv.grpc_api import registration as registration_module
from namesrv.settings import NamesrvSettings
from namesrv.storage.tables import KV_CONFIG
from namesrv_common.endpoints import Endpoint
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import CLUSTER, A, Fleet
from tests.support.refusals import refuses
from tests.support.registrations import identity, registration
from tests.unit.namesrv.scenarios.calls import Calls
from tests.unit.namesrv.scenarios.groups import GROUP, all_topics, names

BROKER = identity("10.10.1.1:10911", broker_id=2333, name="broker")


@pytest.fixture
def calls(fleet: Fleet) -> Calls:
    return Calls(fleet)


def register(calls: Calls, request: reg.RegisterBrokerRequest) -> reg.RegisterBrokerResponse:
    return asyncio.run(calls.registration.RegisterBroker(request, CONTEXT))


def checksum(request: reg.RegisterBrokerRequest) -> int:
    lines = [f"{config.topic} 4 4 6 0\n" for config in request.topic_configs]
    return crc32("".join(lines).encode())


@pytest.mark.parametrize("filter_servers", [None, ["10.10.1.1:8080"]])
def test_a_slave_registers_with_a_valid_checksum(
    fleet: Fleet, calls: Calls, filter_servers: Iterable[str] | None
) -> None:
    """Scenario 50, with and without the body that has filter servers."""
    request = registration(("T1", "T2"), BROKER)
    request.body_crc32 = checksum(request)
    if filter_servers is not None:
        request.filter_servers.filter_servers.extend(filter_servers)
    assert register(calls, request).generation == 1
    (group,) = fleet.state.tables.broker_addr_table.values()
    assert dict(group.addrs) == {2333: "10.10.1.1:10911"}
    kept = [tuple(filter_servers)] if filter_servers else []
    assert list(fleet.state.tables.filter_server_table.values()) == kept


def test_an_address_without_a_port_is_refused(fleet: Fleet, calls: Calls) -> None:
    """Scenario 50. Upstream's own test registers one; no client could reach it."""
    with refuses(Reason.INVALID_FIELD, match="broker_addr"):
        register(calls, registration(broker=identity("10.10.1.1", 2333)))
    assert not fleet.state.tables.broker_addr_table


def test_a_wrong_checksum_changes_nothing_and_zero_is_not_checked(fleet: Fleet, calls: Calls) -> None:
    """Own case: crc 0 skips the check."""
    request = registration()
    request.body_crc32 = checksum(request) ^ 1
    with refuses(Reason.CRC32_NOT_MATCH):
        register(calls, request)
    assert fleet.state.revision == 0
    request.body_crc32 = 0
    assert register(calls, request).changed


def test_an_unregistration_has_happened_when_it_is_answered(fleet: Fleet, calls: Calls) -> None:
    """Scenario 51, decided otherwise: upstream answers first, and the stale order may remove a fresh registration."""
    register(calls, registration())
    request = reg.UnregisterBrokerRequest(broker=identity())
    answer = asyncio.run(calls.registration.UnregisterBroker(request, CONTEXT))
    assert answer.removed
    assert not fleet.state.tables.broker_addr_table


def test_all_topics_are_listed(calls: Calls) -> None:
    """Scenario 52. No setting switches the list off."""
    register(calls, registration())
    request = pb.ListTopicsRequest()
    assert list(asyncio.run(calls.routes.tables.ListTopics(request, CONTEXT)).topics) == ["TopicTest"]


def test_a_known_topic_has_a_route_and_an_unknown_one_an_error(calls: Calls) -> None:
    """Scenario 53."""
    register(calls, registration())
    known, unknown = (pb.GetTopicRouteRequest(topic=topic) for topic in ("TopicTest", "unknown"))
    answer = pb.GetTopicRouteResponse.FromString(asyncio.run(calls.routes.lookups.GetTopicRoute(known, CONTEXT)))
    assert answer.route.broker_datas[0].broker_name == "broker-a"
    with refuses(Reason.TOPIC_NOT_FOUND, match="unknown"):
        asyncio.run(calls.routes.lookups.GetTopicRoute(unknown, CONTEXT))


def test_an_unknown_cluster_has_an_empty_list(calls: Calls) -> None:
    """Own case: code 224 for an unknown cluster, which upstream answers by way of a swallowed exception."""
    register(calls, registration())
    request = pb.ListTopicsRequest(cluster_name="unknown")
    answer = asyncio.run(calls.routes.tables.ListTopics(request, CONTEXT))
    assert (list(answer.topics), answer.next_page_token) == ([], "")


@pytest.mark.parametrize(
    ("call", "request_type", "field"),
    [
        ("WipeWritePermOfBroker", adm.WipeWritePermOfBrokerRequest, "broker_name"),
        ("AddWritePermOfBroker", adm.AddWritePermOfBrokerRequest, "broker_name"),
        ("DeleteTopic", adm.DeleteTopicRequest, "topic"),
    ],
)
def test_an_operators_call_is_refused_if_it_does_not_say_what_it_is_about(
    calls: Calls, call: str, request_type: type[Message], field: str
) -> None:
    """Scenario 55, decided otherwise: upstream answers success to empty headers of 205, 327 and 216."""
    with refuses(Reason.INVALID_FIELD) as caught:
        asyncio.run(getattr(calls.operators, call)(request_type(), CONTEXT))
    assert caught.value.violations[0].field == field


def test_what_is_not_there_cannot_be_wiped_or_deleted(calls: Calls) -> None:
    """Codes 205 and 216, decided otherwise: upstream answers success though nothing happened."""
    wipe, delete = adm.WipeWritePermOfBrokerRequest(broker_name="broker-x"), adm.DeleteTopicRequest(topic="TopicTest")
    with refuses(Reason.BROKER_NOT_REGISTERED, match="broker-x"):
        asyncio.run(calls.operators.WipeWritePermOfBroker(wipe, CONTEXT))
    with refuses(Reason.TOPIC_NOT_FOUND, match="TopicTest"):
        asyncio.run(calls.operators.DeleteTopic(delete, CONTEXT))


def test_a_value_can_be_read_until_it_is_deleted() -> None:
    """Scenario 58: put, get and delete."""
    table = EMPTY.with_value("ns", "key", "value")
    assert table.get("ns", "key") == "value"
    assert table.without("ns", "key").get("ns", "key") is None


def test_the_rows_of_the_kv_configuration_give_back_all_entries() -> None:
    """Scenario 58: the round trip, which goes through JSON upstream."""
    entries = {"UnitTest1": "broker-a:4", "UnitTest2": "broker-b:4;broker-c:8", "größer €": ""}
    rows = KV_CONFIG.encode(KvConfigTable.of({ORDER_TOPIC_CONFIG: entries}))
    assert KV_CONFIG.decode(rows).entries(ORDER_TOPIC_CONFIG) == entries


def test_a_name_server_listens_on_9876_unless_told_otherwise() -> None:
    """Scenario 59: its port."""
    assert Endpoint.parse(NamesrvSettings.model_fields["listen"].default).port == 9876


def test_the_end_of_an_unknown_channel_changes_nothing(fleet: Fleet) -> None:
    """Scenario 60: close, exception and idle are one thing here, and an absent channel belongs to nobody."""
    fleet.register(A)
    assert fleet.end_channel("unknown") == []
    assert fleet.end_channel("") == []
    assert names(fleet) == [GROUP.broker_name]
    assert fleet.state.revision == 1


def test_cluster_info_tells_clusters_and_addresses(calls: Calls) -> None:
    """Scenario 66: what cluster info encodes is what was registered."""
    register(calls, registration(broker=BROKER))
    request = pb.GetBrokerClusterInfoRequest()
    answer = asyncio.run(calls.routes.tables.GetBrokerClusterInfo(request, CONTEXT))
    info = pb.GetBrokerClusterInfoResponse.FromString(answer)
    (group,) = info.broker_datas
    assert (group.cluster_name, group.broker_name) == (CLUSTER, "broker")
    assert [(addr.broker_id, addr.broker_addr) for addr in group.broker_addrs] == [(2333, "10.10.1.1:10911")]


def test_versions_are_equal_only_in_all_their_parts() -> None:
    """Scenario 67. A version without a counter, which upstream compares to others, is refused."""
    assert DataVersion(1, 2, 3) == DataVersion(1, 2, 3)
    assert len({DataVersion(1, 2, 3), DataVersion(1, 3, 3), DataVersion(2, 2, 3), DataVersion(1, 2, 4)}) == 4
    message = registration().data_version
    message.ClearField("counter")
    with refuses(Reason.INVALID_FIELD, match=r"data_version\.counter"):
        registration_module.data_version("data_version", message)


def test_a_registration_of_10000_topics_arrives_as_it_was_sent(fleet: Fleet, calls: Calls) -> None:
    """Scenario 68, plain: compression is gRPC's business, so the test over the wire has it."""
    sent: Message = registration(f"topic-{number}" for number in range(10_000))
    register(calls, reg.RegisterBrokerRequest.FromString(sent.SerializeToString()))
    assert len(fleet.topics) == 10_000
    assert fleet.query() == (False, DataVersion(1_000, 1))
    assert all_topics(fleet)[0] == "topic-0"
