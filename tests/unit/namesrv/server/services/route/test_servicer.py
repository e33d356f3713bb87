"""RouteServicer: batches are joined as generated code encodes them, and bounded; the status counts what is there."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.app.stall_detector import TICK_SECONDS
from namesrv.core.errors import LimitExceeded
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.route import RouteServicer
from tests.support.core_fleet import A, B, Fleet
from tests.unit.namesrv.servicers import route_servicer

CONTEXT = cast("Context", None)
"""Lookups do not ask for it."""


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


def test_the_routes_of_a_batch_may_have_so_many_bytes_and_not_one_more(
    fleet: Fleet, servicer: RouteServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.register(topics=("T1", "T2"))
    answer = batch(servicer, "T1", "T2", "gone")
    routes = pb.BatchGetTopicRoutesResponse(routes=pb.BatchGetTopicRoutesResponse.FromString(answer).routes).ByteSize()
    monkeypatch.setattr(limits, "MAX_BATCH_ROUTES_BYTES", routes)
    assert batch(servicer, "T1", "T2", "gone") == answer
    monkeypatch.setattr(limits, "MAX_BATCH_ROUTES_BYTES", routes - 1)
    with pytest.raises(LimitExceeded) as caught:
        batch(servicer, "T1", "T2")
    assert caught.value.metadata["value"] == str(routes)


def test_a_zone_leaves_out_masters_of_other_zones_in_a_batch_too(fleet: Fleet, servicer: RouteServicer) -> None:
    fleet.register(A, zone_name="zone-1")
    fleet.register(B, name="broker-b", zone_name="zone-2")
    request = pb.BatchGetTopicRoutesRequest(topics=["TopicTest"], zone_name="ZONE-1")
    answer = pb.BatchGetTopicRoutesResponse.FromString(
        asyncio.run(servicer.lookups.BatchGetTopicRoutes(request, CONTEXT))
    )
    assert [group.broker_name for group in answer.routes[0].route.broker_datas] == ["broker-a"]
    assert [queue.broker_name for queue in answer.routes[0].route.queue_datas] == ["broker-a"]


def test_the_status_counts_what_is_there_and_tells_the_longest_delay(fleet: Fleet, servicer: RouteServicer) -> None:
    fleet.register(A, topics=("T1", "T2", "T3"))
    fleet.register(B, 1)
    fleet.clock.advance(TICK_SECONDS + 0.5)
    status = asyncio.run(servicer.status.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), CONTEXT))
    assert status.header == fleet.state.header()
    assert (status.started_at_millis, status.loop_lag_millis) == (12_345, 500.0)
    assert (status.live_broker_count, status.topic_count, status.compacted_revision) == (2, 3, 0)
    assert status.warm
    assert status.task_count == 1  # the one of asyncio.run
