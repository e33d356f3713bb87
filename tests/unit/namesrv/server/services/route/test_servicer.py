"""RouteService: batches as generated code encodes them, and bounded. The status counts what is there."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.json_format import MessageToDict
from namesrv_api.v1 import route_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.core.errors import Reason
from namesrv.grpc_api import streams
from namesrv.grpc_api.route import LATER_HEADER_BYTES, RouteServicer
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import A, B, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.servicers import route_servicer


@pytest.fixture
def servicer(fleet: Fleet) -> RouteServicer:
    return route_servicer(fleet, started_at_millis=12_345)


def batch(servicer: RouteServicer, *topics: str) -> bytes:
    return asyncio.run(servicer.lookups.BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=topics), CONTEXT))


def test_a_batch_is_what_generated_code_encodes(fleet: Fleet, servicer: RouteServicer) -> None:
    topics = ["T" * length for length in (1, 127)] + ["%RETRY%" + "T" * 200]
    fleet.register(A, topics=topics, filter_servers=("f:1",))
    for number in range(200):  # routes whose length takes one, two and three bytes
        fleet.register(f"10.0.0.{number}:1", topics=topics[1 + number % 2 :], name=f"group-{number}")
    expected = pb.BatchGetTopicRoutesResponse(header=fleet.state.header(), topics_not_found=["gone", "x" * 127])
    for topic in topics:
        expected.routes.add(topic=topic, route=fleet.route(topic))
    assert batch(servicer, "gone", *topics, "x" * 127, "gone", topics[0]) == expected.SerializeToString()


def test_a_batch_names_the_topics_whose_routes_do_not_fit(
    fleet: Fleet, servicer: RouteServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.register(topics=("T1", "T2", "T3"))
    fleet.register(B, topics=("T2",), name="broker-b")
    whole = pb.BatchGetTopicRoutesResponse.FromString(batch(servicer, "T1", "T2", "gone", "T3"))
    most = whole.ByteSize() + LATER_HEADER_BYTES
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", most)
    assert pb.BatchGetTopicRoutesResponse.FromString(batch(servicer, "T1", "T2", "gone", "T3")) == whole
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", most - 1)
    answer = pb.BatchGetTopicRoutesResponse.FromString(batch(servicer, "T1", "T2", "gone", "T3"))
    assert [named.topic for named in answer.routes] == ["T1", "T2"]
    assert (list(answer.topics_not_found), list(answer.topics_left_out)) == (["gone"], ["T3"])


def test_a_batch_fails_if_no_route_fits(fleet: Fleet, servicer: RouteServicer, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.register(topics=("T1", "T2"))
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", 100)
    with refuses(Reason.LIMIT_EXCEEDED):
        batch(servicer, "T1", "T2")


def test_a_batch_of_the_longest_names_and_wide_routes_stays_below_what_clients_accept(
    fleet: Fleet, servicer: RouteServicer
) -> None:
    names = [f"%RETRY%{number:04}{'T' * 244}" for number in range(1_000)]
    for number in range(40):
        fleet.register(f"10.0.0.{number}:1", topics=names[:500], name=f"{'g' * 100}-{number}")
    pending, routes, not_found = names, list[str](), list[str]()
    while pending:
        encoded = batch(servicer, *pending)
        assert len(encoded) <= 4_194_304
        answer = pb.BatchGetTopicRoutesResponse.FromString(encoded)
        routes += [named.topic for named in answer.routes]
        not_found += answer.topics_not_found
        pending = list(answer.topics_left_out)
    assert (routes, not_found) == (names[:500], names[500:])


def groups(servicer: RouteServicer, size: int, token: str = "") -> tuple[list[str], str]:
    """Names of a page of groups, and the token of the next page."""
    request = pb.GetBrokerClusterInfoRequest(page_size=size, page_token=token)
    encoded = asyncio.run(servicer.tables.GetBrokerClusterInfo(request, CONTEXT))
    answer = pb.GetBrokerClusterInfoResponse.FromString(encoded)
    return [group.broker_name for group in answer.broker_datas], answer.next_page_token


def test_a_page_of_groups_ends_at_its_size_or_with_its_bytes(
    fleet: Fleet, servicer: RouteServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"broker-{number}" for number in range(9)]
    for number, name in enumerate(names):
        fleet.register(f"10.0.0.{number}:1", name=name)
    assert groups(servicer, 0) == groups(servicer, 9) == (names, "")
    (fragment, *_) = (group.fragment for group in fleet.state.tables.broker_addr_table.values())
    monkeypatch.setattr(limits, "GROUP_PAGE_BYTES", 3 * len(fragment))
    seen: list[str] = []
    token = ""
    lengths: list[int] = []
    while not lengths or token:
        page, token = groups(servicer, 4, token)
        seen, lengths = seen + page, [*lengths, len(page)]
    assert (seen, lengths) == (names, [3, 3, 3])
    assert groups(servicer, 2)[0] == names[:2]


def test_a_zone_leaves_out_masters_of_other_zones_in_a_batch_too(fleet: Fleet, servicer: RouteServicer) -> None:
    fleet.register(A, zone_name="zone-1")
    fleet.register(B, name="broker-b", zone_name="zone-2")
    request = pb.BatchGetTopicRoutesRequest(topics=["TopicTest"], zone_name="ZONE-1")
    answer = pb.BatchGetTopicRoutesResponse.FromString(
        asyncio.run(servicer.lookups.BatchGetTopicRoutes(request, CONTEXT))
    )
    assert [group.broker_name for group in answer.routes[0].route.broker_datas] == ["broker-a"]
    assert [queue.broker_name for queue in answer.routes[0].route.queue_datas] == ["broker-a"]


def test_a_header_has_revision_0_in_json_too(servicer: RouteServicer) -> None:
    status = asyncio.run(servicer.tables.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), CONTEXT))
    assert MessageToDict(status)["header"]["revision"] == "0"


def test_the_status_counts_what_is_there(fleet: Fleet, servicer: RouteServicer) -> None:
    fleet.register(A, topics=("T1", "T2", "T3"))
    fleet.register(B, 1)
    status = asyncio.run(servicer.tables.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), CONTEXT))
    assert status.header == fleet.state.header()
    assert status.started_at_millis == 12_345
    assert (status.live_broker_count, status.topic_count, status.compacted_revision) == (2, 3, 0)
    assert status.warm


def test_a_batch_has_each_topic_once_with_the_place_it_was_first_in() -> None:
    request = route_service_pb2.BatchGetTopicRoutesRequest(topics=["b", "a", "b", "c"])
    assert list(streams.batch_topics(request)) == [("topics[0]", "b"), ("topics[1]", "a"), ("topics[3]", "c")]


def test_a_batch_has_1_to_1000_topics() -> None:
    most = [str(number) for number in range(limits.MAX_BATCH_TOPICS)]
    batch = route_service_pb2.BatchGetTopicRoutesRequest
    assert len(list(streams.batch_topics(batch(topics=most)))) == 1_000
    with refuses(Reason.INVALID_FIELD, match="topics: is empty"):
        list(streams.batch_topics(batch()))
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        list(streams.batch_topics(batch(topics=[*most, most[0]])))
    assert caught.value.metadata == {"name": "topics of one batch", "value": "1001", "limit": "1000"}
