"""Batches, lists, groups, status, RegisterTopic and checksums over the wire."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as routes_pb

from groundwork.version import __version__
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, addrs_of
from tests.support.registrations import identity, registration

ROUTES = "/namesrv_api.v1.RouteService"
A, B = "127.0.0.1:10911", "127.0.0.1:20911"


def register(
    client: Client,
    topics: Iterable[str] = ("TopicTest",),
    addr: str = A,
    name: str = "broker-a",
    cluster: str = "DefaultCluster",
    flag: int = 0,
) -> None:
    """Registers a master whose topics all have the same flag bits."""
    request = registration(topics, identity(addr, 0, name, cluster))
    for config in request.topic_configs:
        config.topic_sys_flag = flag
    client.registration.RegisterBroker(request, timeout=TIMEOUT)


def queue_data(name: str = "broker-a", **changes: Any) -> route_data_pb2.QueueData:
    """Queues of a group of the default cluster."""
    message = route_data_pb2.QueueData(
        cluster_name="DefaultCluster", broker_name=name, read_queue_nums=4, write_queue_nums=4, perm=6
    )
    message.MergeFrom(route_data_pb2.QueueData(**changes))
    return message


def batch(client: Client, *topics: str) -> routes_pb.BatchGetTopicRoutesResponse:
    """The answer to a batch."""
    return client.routes.BatchGetTopicRoutes(routes_pb.BatchGetTopicRoutesRequest(topics=topics), timeout=TIMEOUT)


def all_topics(client: Client, **fields: Any) -> list[str]:
    """All names of a list, which is read in pages of two."""
    names: list[str] = []
    request = routes_pb.ListTopicsRequest(page_size=2, **fields)
    while True:
        page = client.routes.ListTopics(request, timeout=TIMEOUT)
        assert len(page.topics) <= 2
        names += page.topics
        request.page_token = page.next_page_token
        if not request.page_token:
            return names


def revision(client: Client) -> int:
    """The current revision."""
    return client.routes.GetNamesrvStatus(routes_pb.GetNamesrvStatusRequest(), timeout=TIMEOUT).header.revision


def test_a_batch_answers_what_single_lookups_answer_and_names_what_is_not_there(client: Client) -> None:
    register(client, ["T1", "T2"])
    register(client, ["T2", "T3"], B, "broker-b")
    answer = batch(client, "T3", "nobody-has-this", "T2", "T3", "nor-this", "nobody-has-this")
    assert [route.topic for route in answer.routes] == ["T3", "T2"]
    assert list(answer.topics_not_found) == ["nobody-has-this", "nor-this"]
    assert [route.route for route in answer.routes] == [client.route("T3"), client.route("T2")]
    assert answer.header.revision == revision(client)


def test_the_members_of_a_group_are_answered_and_an_unknown_group_has_none(client: Client) -> None:
    request = registration()
    request.zone_name = "zone-1"
    request.enable_acting_master = True
    client.registration.RegisterBroker(request, timeout=TIMEOUT)
    client.registration.RegisterBroker(registration(broker=identity(B, 1)), timeout=TIMEOUT)

    def group(name: str, cluster: str = "DefaultCluster") -> route_data_pb2.BrokerData:
        asked = routes_pb.GetBrokerMemberGroupRequest(cluster_name=cluster, broker_name=name)
        return client.routes.GetBrokerMemberGroup(asked, timeout=TIMEOUT).broker_data

    known, unknown, elsewhere = group("broker-a"), group("broker-b"), group("broker-a", "other")
    assert addrs_of(known) == {0: A, 1: B}
    assert (known.zone_name, known.enable_acting_master) == ("zone-1", True)
    assert unknown == route_data_pb2.BrokerData(cluster_name="DefaultCluster", broker_name="broker-b")
    assert elsewhere == route_data_pb2.BrokerData(cluster_name="other", broker_name="broker-a")
    error = client.failure(f"{ROUTES}/GetBrokerMemberGroup", routes_pb.GetBrokerMemberGroupRequest(broker_name="b"))
    assert (error.reason, error.metadata["field"]) == ("INVALID_FIELD", "cluster_name")


@pytest.mark.own_server
def test_the_status_tells_version_start_and_counts(client: Client) -> None:
    register(client, ["T1", "T2"])
    client.registration.RegisterBroker(registration(broker=identity(B, 1)), timeout=TIMEOUT)
    status = client.routes.GetNamesrvStatus(routes_pb.GetNamesrvStatusRequest(), timeout=TIMEOUT)
    assert status.version == __version__
    assert 0 <= time.time() * 1000 - status.started_at_millis < 600_000
    assert (status.warm, status.guard_tripped, status.unconfirmed_broker_count) == (True, False, 0)
    assert (status.live_broker_count, status.topic_count) == (2, 2)
    assert (status.compacted_revision, status.header.revision) == (0, 2)


def test_a_topic_is_registered_for_registered_groups_and_again_without_a_change(client: Client) -> None:
    register(client)
    before = revision(client)
    request = pb.RegisterTopicRequest(topic="New", queue_datas=[queue_data(write_queue_nums=8, topic_sys_flag=1)])
    first = client.registration.RegisterTopic(request, timeout=TIMEOUT)
    again = client.registration.RegisterTopic(request, timeout=TIMEOUT)
    assert (first.changed, first.header.revision) == (True, before + 1)
    assert again.HasField("changed")
    assert (again.changed, again.header.revision) == (False, first.header.revision)
    route = client.route("New")
    assert route is not None
    assert list(route.queue_datas) == list(request.queue_datas)
    assert all_topics(client) == ["New", "TopicTest"]
