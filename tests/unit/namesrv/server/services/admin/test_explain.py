"""ExplainTopicRoute as a call: what its answer carries, refuses and is bounded by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.app.history import History
from namesrv.app.worker import Worker
from namesrv.core.changes import Cause, ChangeLog
from namesrv.core.errors import Reason
from namesrv.core.explain import MAX_TEXT_LENGTH
from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKind
from namesrv.core.operator_changes import IntentsChange, TopicDeletion
from namesrv.core.state import NamesrvIdentity
from namesrv.grpc_api.admin import HistoryCalls
from namesrv.storage.database import DATABASE_FILE, Database, MemoryDatabase
from namesrv.storage.journal import Journal
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import CLUSTER, B, Fleet
from tests.support.refusals import refuses
from tests.support.state_changes import apply_now
from tests.unit.namesrv.explaining import NEWER, STARTED_AT, T0, T0_MILLIS, T10, T10_MILLIS, decide, only


def call(fleet: Fleet, request: pb.ExplainTopicRouteRequest) -> pb.ExplainTopicRouteResponse:
    return asyncio.run(explained(fleet, request, Journal(MemoryDatabase(), "", 1)))


async def explained(
    fleet: Fleet, request: pb.ExplainTopicRouteRequest, journal: Journal
) -> pb.ExplainTopicRouteResponse:
    reader = Worker("reader")
    calls = HistoryCalls(fleet.state, History(fleet.state, journal, reader, STARTED_AT), reader)
    return await calls.ExplainTopicRoute(request, CONTEXT)


def test_the_answer_carries_all_that_is_known(fleet: Fleet) -> None:
    fleet.register()
    fleet.register(B, name="broker-b")
    decide(fleet, IntentKind.WIPE_WRITE_PERM, BrokerKey(CLUSTER, "broker-b"), comment="")
    fleet.unregister()
    answer = call(fleet, pb.ExplainTopicRouteRequest(topic="TopicTest"))
    assert answer.header == fleet.state.header()
    gone, present = answer.explanations
    assert (gone.cluster_name, gone.broker_name) == (CLUSTER, "broker-a")
    assert gone.state == pb.RouteExplanation.STATE_GROUP_LEFT
    assert gone.removal_reason == route_data_pb2.REMOVAL_REASON_UNREGISTERED
    assert (gone.since_millis, present.since_millis) == (T0_MILLIS, T0_MILLIS)
    assert present == pb.RouteExplanation(
        cluster_name=CLUSTER,
        broker_name="broker-b",
        state=pb.RouteExplanation.STATE_IN_ROUTE,
        conditions=[pb.RouteExplanation.CONDITION_DRAINED],
        explanation=f"in the route with 4 queues to read; read-only because drained by an operator since {T0}",
        since_millis=T0_MILLIS,
    )


def test_what_is_not_known_is_absent_from_the_answer(fleet: Fleet) -> None:
    request = pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name="broker-x")
    (explanation,) = call(fleet, request).explanations
    assert not explanation.HasField("since_millis")
    assert explanation.removal_reason == route_data_pb2.REMOVAL_REASON_UNSPECIFIED


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("topic", pb.ExplainTopicRouteRequest()),
        ("topic", pb.ExplainTopicRouteRequest(topic="no\ttopic")),
        ("broker_name", pb.ExplainTopicRouteRequest(topic="T", broker_name="")),
        ("broker_name", pb.ExplainTopicRouteRequest(topic="T", cluster_name="c")),
        ("cluster_name", pb.ExplainTopicRouteRequest(topic="T", broker_name="b", cluster_name="")),
        ("zone_name", pb.ExplainTopicRouteRequest(topic="T", zone_name="no\tzone")),
    ],
)
def test_a_bad_field_is_refused_by_name(fleet: Fleet, field: str, request_: pb.ExplainTopicRouteRequest) -> None:
    with refuses(Reason.INVALID_FIELD) as caught:
        call(fleet, request_)
    assert caught.value.violations[0].field == field


def test_an_answer_tells_of_so_many_groups_and_not_of_one_more(fleet: Fleet) -> None:
    request = pb.ExplainTopicRouteRequest(topic="Unknown")
    for number in range(limits.MAX_EXPLANATIONS + 1):
        if number == limits.MAX_EXPLANATIONS:
            assert len(call(fleet, request).explanations) == limits.MAX_EXPLANATIONS
        fleet.register(f"10.0.{number // 250}.{number % 250}:1", name=f"b-{number}", topics=[])
    with refuses(Reason.LIMIT_EXCEEDED, match="broker_name"):
        call(fleet, request)


def test_an_answer_of_the_longest_texts_is_below_what_clients_take() -> None:
    row = pb.RouteExplanation(
        cluster_name="c" * 127,
        broker_name="b" * 127,
        state=pb.RouteExplanation.STATE_IN_ROUTE,
        conditions=pb.RouteExplanation.Condition.keys(),
        explanation="\U0001f600" * MAX_TEXT_LENGTH,
        since_millis=2**63 - 1,
        removal_reason="REMOVAL_REASON_EXPIRED",
    )
    assert pb.ExplainTopicRouteResponse(explanations=[row] * limits.MAX_EXPLANATIONS).ByteSize() < 4 * 1024 * 1024


def test_an_explanation_with_two_long_comments_is_cut(fleet: Fleet) -> None:
    comment = "\U0001f600" * limits.MAX_COMMENT_LENGTH
    fleet.register()
    fleet.register(B, 1)
    hold_all = Intent(IntentKind.TOPIC_HOLD, HoldKey("TopicTest", None), "an operator", T0_MILLIS, comment)
    cause = Cause("DeleteTopic", "an operator", comment)
    apply_now(TopicDeletion(fleet.state, "TopicTest", None, cause))
    assert len(only(fleet).text) < MAX_TEXT_LENGTH
    apply_now(IntentsChange(fleet.state, fleet.state.intents.with_intent(hold_all), cause))
    text = only(fleet).text
    assert len(text) == MAX_TEXT_LENGTH
    assert text.endswith("...")


# Groups that left before the start.


@asynccontextmanager
async def after_restart(folder: Path) -> AsyncIterator[tuple[Fleet, Journal]]:
    """A fleet after a restart. The life before it knew broker-a, whose channel ended, and broker-b, which stayed."""
    database = Database(folder)
    former = Fleet()
    journal = Journal(database, former.state.identity.epoch, 10**6)
    former.state.change_log.listen(journal.on_change)
    channel = former.heartbeats.open_channel()
    former.register(channel_id=channel)
    former.register(B, name="broker-b")
    former.clock.advance(10)
    former.end_channel(channel)
    former.register(B, name="broker-b", topics=["TopicTest", "Other"], version=NEWER)
    await journal.write_last()
    fleet = Fleet()
    fleet.state.identity = NamesrvIdentity("ns-test", "000000000000002-00000000")
    try:
        yield fleet, Journal(database, fleet.state.identity.epoch, 10**6)
    finally:
        await database.close(20)


async def test_a_group_that_left_before_the_restart_is_told_from_the_journal(tmp_path: Path) -> None:
    async with after_restart(tmp_path) as (fleet, journal):
        request = pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name="broker-a")
        (told,) = (await explained(fleet, request, journal)).explanations
        before, _, entry = told.explanation.partition("; before that, ")
        assert before == only(fleet, broker_name="broker-a").text
        assert entry == (
            f"at {T10}: broker-a (127.0.0.1:10911, id 0) of DefaultCluster lost its channel: "
            "group gone; 1 topic lost its queues on it (TopicTest)"
        )
        assert (told.state, told.since_millis) == (pb.RouteExplanation.STATE_NEVER_REGISTERED, T10_MILLIS)
        assert told.removal_reason == route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED


async def test_a_group_that_was_there_at_the_end_of_the_last_life_did_not_leave(tmp_path: Path) -> None:
    async with after_restart(tmp_path) as (fleet, journal):
        request = pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name="broker-b")
        (told,) = (await explained(fleet, request, journal)).explanations
        assert told.explanation.endswith(
            "broker-b (127.0.0.1:20911, id 0) of DefaultCluster registered: 1 topic put (Other)"
        )
        assert told.removal_reason == route_data_pb2.REMOVAL_REASON_UNSPECIFIED


async def test_a_group_that_memory_has_forgotten_is_told_from_the_journal(tmp_path: Path) -> None:
    async with after_restart(tmp_path) as (fleet, journal):
        fleet.state.change_log = ChangeLog(max_changes=1)
        fleet.state.change_log.listen(journal.on_change)
        fleet.register()
        fleet.unregister()
        fleet.register(B, name="broker-b")
        await journal.write_last()
        request = pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name="broker-a")
        (told,) = (await explained(fleet, request, journal)).explanations
        before, _, entry = told.explanation.partition("; before that, ")
        assert before.endswith("; the change log reaches back to revision 2")
        assert entry.startswith(f"at {T0}: broker-a (127.0.0.1:10911, id 0) of DefaultCluster unregistered: ")


async def test_a_group_in_memory_or_in_no_entry_is_explained_without_the_journal(tmp_path: Path) -> None:
    async with after_restart(tmp_path) as (fleet, journal):
        fleet.register(name="broker-c")
        for broker_name in ("broker-c", "broker-x"):
            request = pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name=broker_name)
            (told,) = (await explained(fleet, request, journal)).explanations
            assert told.explanation == only(fleet, broker_name=broker_name).text
        everything = pb.ExplainTopicRouteRequest(topic="TopicTest")
        assert [each.broker_name for each in (await explained(fleet, everything, journal)).explanations] == ["broker-c"]


async def test_a_journal_that_cannot_be_read_takes_nothing_from_an_explanation(tmp_path: Path) -> None:
    async with after_restart(tmp_path) as (fleet, journal):
        (tmp_path / DATABASE_FILE).rename(tmp_path / "away")
        request = pb.ExplainTopicRouteRequest(topic="TopicTest", broker_name="broker-a")
        (told,) = (await explained(fleet, request, journal)).explanations
        assert told.explanation == only(fleet, broker_name="broker-a").text
