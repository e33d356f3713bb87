"""RegisterTopic: one topic for groups that are registered, all or nothing."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.core.errors import Reason
from namesrv.core.model import BrokerKey
from namesrv.grpc_api import registration
from tests.support.core_fleet import CLUSTER, Fleet
from tests.support.refusals import refuses

GROUP_A, GROUP_B = BrokerKey(CLUSTER, "broker-a"), BrokerKey(CLUSTER, "broker-b")
NUMBERS = (4, 4, 6, 0)


def queue_data(name: str = "broker-a", cluster: str = CLUSTER, **changes: int | None) -> route_data_pb2.QueueData:
    row = route_data_pb2.QueueData(broker_name=name, cluster_name=cluster)
    for field, number in {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6, **changes}.items():
        if number is not None:
            setattr(row, field, number)
    return row


def with_mapping(row: route_data_pb2.QueueData) -> route_data_pb2.QueueData:
    row.mapping.SetInParent()
    return row


def checked(*queue_datas: route_data_pb2.QueueData, topic: str = "New") -> dict[BrokerKey, tuple[int, int, int, int]]:
    return registration.topic_queues(pb.RegisterTopicRequest(topic=topic, queue_datas=queue_datas))


def test_a_group_that_is_not_registered_is_named_in_the_error(fleet: Fleet) -> None:
    fleet.register()
    elsewhere = BrokerKey("other-cluster", "broker-a")
    with refuses(Reason.BROKER_NOT_REGISTERED) as caught:
        fleet.register_topic("New", {GROUP_A: (8, 8, 6, 0), elsewhere: NUMBERS})
    assert caught.value.metadata == {"cluster_name": "other-cluster", "broker_name": "broker-a"}
    assert "broker group broker-a of cluster other-cluster" in caught.value.text


def test_the_queues_of_a_request_become_records() -> None:
    assert checked(queue_data(), queue_data("broker-b", topic_sys_flag=3)) == {GROUP_A: NUMBERS, GROUP_B: (4, 4, 6, 3)}
    assert checked(queue_data(), queue_data(cluster="other")).keys() == {GROUP_A, BrokerKey("other", "broker-a")}


@pytest.mark.parametrize(
    ("message", "field", "problem"),
    [
        (queue_data(name=""), "broker_name", "is empty"),
        (queue_data(cluster="a\tb"), "cluster_name", "has characters that are not printable"),
        (queue_data(read_queue_nums=None), "read_queue_nums", "is missing for the group 'broker-a'"),
        (queue_data(read_queue_nums=65_536), "read_queue_nums", "is 65536"),
        (queue_data(write_queue_nums=-1), "write_queue_nums", "is -1"),
        (queue_data(perm=8), "perm", "is 8 for the group 'broker-a', 0 to 7"),
        (queue_data(topic_sys_flag=-1), "topic_sys_flag", "is -1"),
        (queue_data(reported_perm=6), "reported_perm", "only answers have it"),
        (with_mapping(queue_data()), "mapping", "only answers have it"),
        (queue_data("broker-b"), "broker_name", "is there twice"),
    ],
)
def test_bad_queues_name_their_place_field_and_rule(
    message: route_data_pb2.QueueData, field: str, problem: str
) -> None:
    with refuses(Reason.INVALID_FIELD) as caught:
        checked(queue_data("broker-b"), message)
    assert caught.value.violations[0].field == f"queue_datas[1].{field}"
    assert problem in caught.value.violations[0].description


def test_queues_at_their_limits_are_accepted() -> None:
    assert checked(queue_data(read_queue_nums=65_535, write_queue_nums=0, perm=7)) == {GROUP_A: (65_535, 0, 7, 0)}


def test_a_topic_name_is_checked_as_in_a_registration() -> None:
    with refuses(Reason.INVALID_FIELD, match="topic: is empty"):
        checked(queue_data(), topic="")


def test_no_queues_and_too_many_groups_are_refused() -> None:
    with refuses(Reason.INVALID_FIELD, match="queue_datas: is empty"):
        checked()
    most = [queue_data(f"broker-{number}") for number in range(limits.MAX_QUEUE_DATAS_PER_TOPIC)]
    assert len(checked(*most)) == limits.MAX_QUEUE_DATAS_PER_TOPIC
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        checked(*most, queue_data("one-more"))
    assert caught.value.metadata == {"name": "groups of one topic", "value": "1001", "limit": "1000"}
