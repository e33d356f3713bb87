"""RouteService: page tokens, batches as generated code encodes them, status, pins, streams of tables and changes."""

from __future__ import annotations

import asyncio
import string
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple, cast

import pytest
from google.protobuf.json_format import MessageToDict
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.app.access import FairShares
from namesrv.core.changes import ChangeLog
from namesrv.core.errors import Reason
from namesrv.core.model import DataVersion
from namesrv.core.snapshot import MAX_PINNED_REVISIONS
from namesrv.grpc_api import streams
from namesrv.grpc_api.handlers import AsksForPage, Name, paged, token_after
from namesrv.grpc_api.route import LATER_HEADER_BYTES, RouteServicer
from namesrv.grpc_api.streams import StreamCalls
from namesrv_common.version import __version__
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import A, B, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.servicers import route_servicer

ListTopics = pb.ListTopicsRequest
ListAuditEntries = admin_service_pb2.ListAuditEntriesRequest
START = Name("")
NAME = "Bestellungen-\xff\xff\xfe"


def position_of(request: AsksForPage) -> str:
    return paged(request, START).after.name


def test_a_token_goes_on_after_its_position_whatever_the_page_size() -> None:
    token = token_after(ListTopics(page_size=10), Name(NAME))
    assert set(token) <= set(string.ascii_letters + string.digits + "-_=")
    assert position_of(ListTopics(page_size=20, page_token=token)) == NAME
    assert position_of(ListTopics()) == ""


def test_pages_have_a_thousand_rows_by_default_and_never_more_than_allowed() -> None:
    expected = [1_000, 1, 10_000, 10_000]
    assert [paged(ListTopics(page_size=size), START).size for size in (0, 1, 10_000, 10_001)] == expected
    assert [paged(ListTopics(page_size=size), START, most=9, default=5).size for size in (0, 9, 10)] == [5, 9, 9]
    with refuses(Reason.INVALID_FIELD, match="^page_size: is -1, must not be negative$"):
        paged(ListTopics(page_size=-1), START)


@pytest.mark.parametrize("fitting", [2, 3])
def test_only_a_page_that_leaves_rows_out_has_a_token(fitting: int) -> None:
    asked = paged(ListTopics(page_size=3), START)
    page, token = asked.cut(["a", "b", "c", "d"], Name, fitting)
    assert page == ["a", "b", "c"][:fitting]
    assert position_of(ListTopics(page_token=token)) == page[-1]
    assert asked.cut(["a", "b", "c"], Name) == (["a", "b", "c"], "")


class Entry(NamedTuple):
    """A position of a text and a number, as those of most calls are."""

    name: str
    number: int


TOKEN = token_after(ListTopics(), Name(NAME))
NO_ENTRIES = ("e", "e\n-1", "e\n1.0", "e\n٣", "e\n1 ", "e\n1\n2", "\n1", f"e\n{2**63}")
"""Texts that are no position of an entry after the first."""


@pytest.mark.parametrize(
    ("asked", "start"),
    [
        (ListTopics(cluster_name="c", page_token=TOKEN), START),
        (ListAuditEntries(page_token=TOKEN), START),
        *((ListTopics(page_token=token_after(ListTopics(), (text,))), Entry("", -1)) for text in NO_ENTRIES),
        *((ListTopics(page_token=token), START) for token in ("!", "eA==", "VG9waWNUZXN0", "ü")),
        (ListTopics(page_token=token_after(ListTopics(), START)), START),
    ],
)
def test_a_token_that_no_answer_to_this_question_had_is_refused(asked: AsksForPage, start: Name | Entry) -> None:
    with refuses(Reason.INVALID_FIELD, match=r"^page_token: is not a next_page_token of this call with these"):
        paged(asked, start)


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
    assert limits.MAX_BATCH_BYTES <= 4 * 1024 * 1024, "which clients take"
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", most)
    assert pb.BatchGetTopicRoutesResponse.FromString(batch(servicer, "T1", "T2", "gone", "T3")) == whole
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", most - 1)
    answer = pb.BatchGetTopicRoutesResponse.FromString(batch(servicer, "T1", "T2", "gone", "T3"))
    assert [named.topic for named in answer.routes] == ["T1", "T2"]
    assert (list(answer.topics_not_found), list(answer.topics_left_out)) == (["gone"], ["T3"])


def test_a_batch_names_the_topic_that_can_be_none(fleet: Fleet, servicer: RouteServicer) -> None:
    fleet.register(topics=("T1",))
    with refuses(Reason.INVALID_FIELD, match=r"^topics\[1\]: "):
        batch(servicer, "T1", "no\ttopic")


def test_a_batch_fails_if_no_route_fits(fleet: Fleet, servicer: RouteServicer, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.register(topics=("T1", "T2"))
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", 100)
    with refuses(Reason.LIMIT_EXCEEDED):
        batch(servicer, "T1", "T2")


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
    monkeypatch.setattr(limits, "MAX_GROUP_PAGE_SIZE", 2)
    assert groups(servicer, 9)[0] == names[:2]


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
    expected = pb.GetNamesrvStatusResponse(header=fleet.state.header(), version=__version__, started_at_millis=12_345)
    expected.warm, expected.live_broker_count, expected.topic_count = True, 2, 3
    assert status == expected


def test_a_batch_has_each_topic_once_with_the_place_it_was_first_in() -> None:
    request = pb.BatchGetTopicRoutesRequest(topics=["b", "a", "b", "c"])
    assert list(streams.batch_topics(request)) == [("topics[0]", "b"), ("topics[1]", "a"), ("topics[3]", "c")]


def test_a_batch_has_1_to_1000_topics() -> None:
    most = [str(number) for number in range(limits.MAX_BATCH_TOPICS)]
    batch = pb.BatchGetTopicRoutesRequest
    assert len(list(streams.batch_topics(batch(topics=most)))) == 1_000
    with refuses(Reason.INVALID_FIELD, match="topics: is empty"):
        list(streams.batch_topics(batch()))
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        list(streams.batch_topics(batch(topics=[*most, most[0]])))
    assert caught.value.metadata == {"name": "topics of one batch", "value": "1001", "limit": "1000"}


@pytest.fixture
def calls(servicer: RouteServicer) -> StreamCalls:
    return servicer.streams


async def test_a_followed_snapshot_does_not_keep_its_request(calls: StreamCalls, fleet: Fleet) -> None:
    request = pb.StreamRouteSnapshotRequest(follow=True)
    request.resume_after.epoch, request.resume_after.revision = fleet.state.identity.epoch, fleet.state.revision
    before = sys.getrefcount(request)
    async with aclosing(cast("AsyncGenerator[bytes]", calls.StreamRouteSnapshot(request, CONTEXT))) as stream:
        fleet.register()
        await anext(stream)
        assert sys.getrefcount(request) == before


async def test_a_follower_that_resumes_is_sent_what_is_later_than_its_point(calls: StreamCalls, fleet: Fleet) -> None:
    make_changes(fleet, 3)
    point = pb.ResumePoint(epoch=fleet.state.identity.epoch, revision=fleet.state.revision - 1)
    request = pb.StreamRouteSnapshotRequest(follow=True, resume_after=point)
    async with aclosing(cast("AsyncGenerator[bytes]", calls.StreamRouteSnapshot(request, CONTEXT))) as stream:
        first = pb.StreamRouteSnapshotResponse.FromString(await anext(stream))
    assert first.HasField("changes")
    assert first.header.revision == point.revision + 1


async def pin(calls: StreamCalls, lease_millis: int | None = None) -> pb.PinRouteSnapshotResponse:
    return await calls.PinRouteSnapshot(pb.PinRouteSnapshotRequest(lease_millis=lease_millis), CONTEXT)


async def snapshot(calls: StreamCalls, request: pb.StreamRouteSnapshotRequest) -> list[pb.StreamRouteSnapshotResponse]:
    stream = calls.StreamRouteSnapshot(request, CONTEXT)
    return [pb.StreamRouteSnapshotResponse.FromString(sent) async for sent in stream]


async def changes(
    calls: StreamCalls, fleet: Fleet, after: int, up_to: int | None = None
) -> list[pb.StreamRouteChangesResponse]:
    point = pb.ResumePoint(epoch=fleet.state.identity.epoch, revision=after)
    stream = calls.StreamRouteChanges(pb.StreamRouteChangesRequest(after=point, up_to_revision=up_to), CONTEXT)
    return [pb.StreamRouteChangesResponse.FromString(sent) async for sent in stream]


def make_changes(fleet: Fleet, count: int) -> None:
    for _ in range(count):
        fleet.register(version=DataVersion(1, fleet.state.revision + 1))


async def test_a_pin_says_its_revision_and_lease(fleet: Fleet, calls: StreamCalls) -> None:
    make_changes(fleet, 3)
    answer = await pin(calls)
    assert (answer.header, answer.lease_millis) == (fleet.state.header(), 600_000)
    for millis in (limits.MIN_PIN_LEASE_MILLIS, 7_001, limits.MAX_PIN_LEASE_MILLIS):
        assert (await pin(calls, lease_millis=millis)).lease_millis == millis


async def test_a_pin_of_a_follower_has_a_share_that_other_readers_leave(fleet: Fleet, calls: StreamCalls) -> None:
    for _ in range(MAX_PINNED_REVISIONS * 3 // 4):
        make_changes(fleet, 1)
        await pin(calls)
    make_changes(fleet, 1)
    with refuses(Reason.LIMIT_EXCEEDED):
        await pin(calls)
    assert (
        await calls.PinRouteSnapshot(pb.PinRouteSnapshotRequest(follow=True), CONTEXT)
    ).header == fleet.state.header()


async def release(calls: StreamCalls, pin_id: str) -> pb.ReleaseRouteSnapshotResponse:
    return await calls.ReleaseRouteSnapshot(pb.ReleaseRouteSnapshotRequest(pin_id=pin_id), CONTEXT)


async def test_a_released_pin_is_gone_and_releasing_it_again_changes_nothing(fleet: Fleet, calls: StreamCalls) -> None:
    make_changes(fleet, 1)
    pin_id = (await pin(calls)).pin_id
    assert [(await release(calls, pin_id)).released for _ in range(2)] == [True, False]
    assert (await release(calls, "")).header == fleet.state.header()
    with refuses(Reason.SNAPSHOT_GONE):
        await snapshot(calls, pb.StreamRouteSnapshotRequest(pin_id=pin_id))


async def test_snapshots_and_pins_say_whether_the_name_server_was_warm(fleet: Fleet) -> None:
    calls = route_servicer(fleet, warm_up_seconds=45.0).streams
    make_changes(fleet, 1)
    cold = await pin(calls)
    assert not cold.warm
    assert cold.HasField("warm")

    async def told(pin_id: str | None = None) -> bool:
        first = (await snapshot(calls, pb.StreamRouteSnapshotRequest(pin_id=pin_id)))[0].snapshot_header
        assert first.HasField("warm")
        return first.warm

    assert not await told()
    fleet.clock.advance(45.0)
    warm = await pin(calls)  # of the same revision
    assert (warm.warm, await told(), await told(warm.pin_id), await told(cold.pin_id)) == (True, True, True, False)


async def test_nothing_is_pinned_during_a_shutdown(fleet: Fleet, calls: StreamCalls) -> None:
    fleet.state.frozen = True
    with refuses(Reason.SHUTTING_DOWN):
        await pin(calls)


async def test_every_table_of_the_contract_can_be_asked_for_alone(fleet: Fleet, calls: StreamCalls) -> None:
    fleet.register(topics=["T1"], filter_servers=("f:1",))
    pin_id = (await pin(calls)).pin_id
    fields = {
        pb.ROUTE_TABLE_CLUSTERS: "clusters",
        pb.ROUTE_TABLE_TOPIC_QUEUES: "topics",
        pb.ROUTE_TABLE_BROKER_GROUPS: "broker_datas",
        pb.ROUTE_TABLE_FILTER_SERVERS: "filter_servers",
        pb.ROUTE_TABLE_LIVE_BROKERS: "live_brokers",
    }
    assert fields.keys() | {pb.ROUTE_TABLE_UNSPECIFIED} == set(pb.RouteTable.values())
    for table, field in fields.items():
        for request in (
            pb.StreamRouteSnapshotRequest(tables=[table]),
            pb.StreamRouteSnapshotRequest(tables=[table], pin_id=pin_id),
        ):
            _, chunk, _ = await snapshot(calls, request)
            assert [listed.name for listed, _ in chunk.chunk.ListFields()] == [field]


BAD_FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("PinRouteSnapshot", {"lease_millis": 999}, "lease_millis", "is 999, must be 1000 to 3600000"),
    ("PinRouteSnapshot", {"lease_millis": 3_600_001}, "lease_millis", "is 3600001, must be 1000 to 3600000"),
    ("StreamRouteSnapshot", {"tables": [0]}, "tables[0]", "is 0, must be a RouteTable, 1 to 5"),
    ("StreamRouteSnapshot", {"tables": [1, 6]}, "tables[1]", "is 6, must be a RouteTable, 1 to 5"),
    ("StreamRouteSnapshot", {"tables": [5, 2, 5]}, "tables[2]", "is ROUTE_TABLE_LIVE_BROKERS again; name each table"),
    ("StreamRouteChanges", {}, "after.epoch", "is missing"),
    ("StreamRouteChanges", {"after": pb.ResumePoint(revision=0)}, "after.epoch", "is missing"),
    ("StreamRouteChanges", {"after": pb.ResumePoint(epoch="e", revision=-1)}, "after.revision", "is -1, must not be"),
]


@pytest.mark.parametrize(("call", "fields", "field", "problem"), BAD_FIELDS)
async def test_a_field_that_breaks_its_rule_is_refused_by_name(
    calls: StreamCalls, call: str, fields: dict[str, Any], field: str, problem: str
) -> None:
    answer = getattr(calls, call)(getattr(pb, f"{call}Request")(**fields), CONTEXT)
    with refuses(Reason.INVALID_FIELD) as caught:
        await (anext(answer) if call.startswith("Stream") else answer)
    assert caught.value.violations[0].field == field
    assert caught.value.violations[0].description.startswith(problem)


async def test_a_point_of_another_epoch_is_refused_whatever_its_revision(fleet: Fleet, calls: StreamCalls) -> None:
    request = pb.StreamRouteChangesRequest(after=pb.ResumePoint(epoch="another", revision=1_000))
    with refuses(Reason.EPOCH_CHANGED) as caught:
        await anext(calls.StreamRouteChanges(request, CONTEXT))
    assert caught.value.metadata == {"epoch": fleet.state.identity.epoch}


async def test_changes_can_be_read_after_the_compacted_revision_up_to_the_last_and_no_other(
    fleet: Fleet, calls: StreamCalls
) -> None:
    fleet.state.change_log = ChangeLog(max_changes=3)
    make_changes(fleet, 5)
    for after in (2, 5):
        revisions = [message.header.revision for message in await changes(calls, fleet, after)]
        assert revisions == [*range(after + 1, 6), 5]
    with refuses(Reason.REVISION_COMPACTED) as caught:
        await changes(calls, fleet, 1)
    assert caught.value.metadata == {"revision": "1", "compacted_revision": "2", "last_revision": "5"}
    with refuses(Reason.REVISION_NOT_REACHED) as caught:
        await changes(calls, fleet, 6)
    assert caught.value.metadata == {"revision": "6", "last_revision": "5"}


async def test_changes_end_between_the_point_they_begin_after_and_the_last(fleet: Fleet, calls: StreamCalls) -> None:
    make_changes(fleet, 5)
    for up_to in (2, 5):
        sent = await changes(calls, fleet, 2, up_to)
        told = [(message.header.revision, message.HasField("changes")) for message in sent]
        assert told == [*((revision, True) for revision in range(3, up_to + 1)), (up_to, False)]
    for up_to in (1, 6):
        with refuses(Reason.INVALID_FIELD) as caught:
            await changes(calls, fleet, 2, up_to)
        expected = ("up_to_revision", f"is {up_to}, must be 2 to 5")
        assert (caught.value.violations[0].field, caught.value.violations[0].description) == expected


async def test_snapshots_and_changes_share_one_limit_of_streams(fleet: Fleet, calls: StreamCalls) -> None:
    calls.streams = FairShares(snapshot_streams=1).snapshot_streams
    make_changes(fleet, 1)
    point = pb.ResumePoint(epoch=fleet.state.identity.epoch, revision=0)
    asked = pb.StreamRouteChangesRequest(after=point)
    async with aclosing(calls.StreamRouteSnapshot(pb.StreamRouteSnapshotRequest(), CONTEXT)) as stream:  # type: ignore[type-var]
        await anext(stream)
        with refuses(Reason.OVERLOADED):
            await anext(calls.StreamRouteChanges(asked, CONTEXT))
    assert len([message async for message in calls.StreamRouteChanges(asked, CONTEXT)]) == 2
