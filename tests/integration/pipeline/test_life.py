"""Lives of name servers, ingested step by step into a log: fakes, processes, and a fleet on a virtual clock."""

from __future__ import annotations

import io
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from route_pipeline import tables
from route_pipeline.ingest import HEARTBEAT_SECONDS, Appended, Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from route_pipeline.name_server import ColdError, NamesrvError
from route_pipeline.questions import Questions, Row, questions, store_history
from route_pipeline.report_data import collect_charts, collect_report
from tests.support.fakes.snapshot_name_server import (
    CHUNKS,
    QUICK,
    FakeNamesrv,
    Pair,
    Response,
    gone,
    header,
    put,
    queue,
    serving,
    snapshot,
    topics_chunk,
    two_alike,
)
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import register, unregister
from tests.support.routes.fleet_life import OPTIONS, LoggedLife, versions_of
from tests.support.routes.log_rows import append_rows, read, row

A, B = "127.0.0.1:10911", "127.0.0.1:20911"
NOT_YET = datetime.max.replace(tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> RouteLog:
    return RouteLog(Place(str(tmp_path / "route tables")))


@pytest.fixture
def pair() -> Iterator[Pair]:
    with two_alike() as fakes:
        yield fakes


def ingest(log: RouteLog, *fakes: FakeNamesrv, **more: Any) -> list[Appended]:
    options = QUICK | more.pop("options", {})
    return Ingester(ingest_options([fake.endpoint for fake in fakes], options), log, **more).once()


def rows(log: RouteLog, query: str) -> list[Row]:
    with questions(log.place) as asked:
        return asked.ask(query)


def test_a_cold_name_server_is_refused_in_one_line_and_waited_for_by_follow(
    log: RouteLog, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair[1].warm = False
    with pytest.raises(ColdError, match=r"^name server ns-b at .* is warming up, so brokers and topics may be missing"):
        ingest(log, *pair)
    assert not list(Path(log.place.url).rglob("*.parquet"))

    endpoints = [fake.endpoint for fake in pair]
    options = ingest_options(endpoints, QUICK, follows=True)
    following = Ingester(options, log, follows=True)
    rounds = [[read.partition(",")[0] for batch in following.once() for read in batch.reads] for _ in range(2)]
    pair[1].warm = True
    rounds.append([read.partition(",")[0] for batch in following.once() for read in batch.reads])
    assert rounds == [["ns-a: snapshot"], [], ["ns-b: snapshot"]]
    assert caplog.messages == [f"waiting: name server ns-b at {endpoints[1]} is warming up"]


def test_of_a_cold_name_server_that_was_read_anyway_an_absence_is_not_known(log: RouteLog, pair: Pair) -> None:
    pair[0].warm = False
    ingest(log, pair[0], options={"onCold": "read"})
    with questions(log.place) as asked:
        at = asked.name_servers()[0]["known_from"]
        assert [asked.route_at(topic, at)[0]["answer"] for topic in ("TopicTest", "Elsewhere")] == [
            "route",
            "not known",
        ]


def test_a_snapshot_that_breaks_off_leaves_no_batch_and_is_read_again(log: RouteLog, pair: Pair) -> None:
    whole = pair[1].script

    def broken(context: grpc.ServicerContext) -> Iterator[Response]:
        yield header("ns-b")
        yield Response(chunk=CHUNKS[1])
        context.abort(grpc.StatusCode.INTERNAL, "killed")

    pair[1].script = broken
    with pytest.raises(NamesrvError, match=r"name server .*: INTERNAL: killed"):
        ingest(log, *pair)
    assert log.batch == -1

    pair[1].script = whole
    (batch,) = ingest(log, *pair)
    assert [read.partition(",")[0] for read in batch.reads] == ["ns-a: snapshot", "ns-b: snapshot"]


def test_rows_that_break_the_contract_are_put_aside_with_the_reason(log: RouteLog) -> None:
    odd = topics_chunk(TopicTest=[queue("broker-a", perm=9)], Fine=[queue("broker-a")])
    with serving(snapshot(odd)) as fake:
        (batch,) = ingest(log, fake)
    assert (batch.rows, batch.aside) == (1, 1)
    (row,) = rows(log, "from log where kind = 'quarantine'")
    assert (row["topic"], row["perm"], row["problem"]) == ("TopicTest", 9, "perm is missing or out of range")


def test_a_restart_between_plan_and_snapshot_is_read_once_and_then_goes_on(log: RouteLog, pair: Pair) -> None:
    fake = pair[0]
    fake.epoch = "0000"  # as it says; its snapshot is of 0001
    (batch,) = ingest(log, fake)
    assert log.reads["ns-a"].position.epoch == "0001"
    fake.epoch, fake.changes, fake.revision = "0001", {8: [gone("Other")]}, 8
    (batch,) = ingest(log, fake)
    assert [read.partition(",")[0] for read in batch.reads] == ["ns-a: changes"]


def test_a_change_that_the_snapshot_before_it_holds_too_is_a_change(log: RouteLog) -> None:
    """A snapshot may be of a later revision than its batch; the next batch repeats what changed in between."""
    names = {"table_name": "topic_queues", "key": "T/c/b", "topic": "T", "cluster_name": "c", "broker_name": "b"}
    old: dict[str, Any] = names | {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6}
    new = old | {"perm": 4}
    append_rows(log, row(from_snapshot=True, **old), read(1, "snapshot"))
    append_rows(log, row(revision=12, from_snapshot=True, snapshot=2, **new), read(12, "snapshot", snapshot=2))
    append_rows(log, row(revision=11, snapshot=2, **new), read(12, snapshot=2))
    told = "select valid_from_revision, valid_to_revision, end_reason from history order by valid_from_revision"
    assert [tuple(one.values()) for one in rows(log, told)] == [(1, 11, "CHANGED"), (11, None, None)]


def test_a_quiet_follow_says_once_a_minute_until_when_it_knows(log: RouteLog, pair: Pair) -> None:
    seconds = 0.0
    options = ingest_options([pair[0].endpoint], QUICK, follows=True)
    following = Ingester(options, log, follows=True, monotonic=lambda: seconds)
    following.once()
    first = log.reads["ns-a"].known_until
    assert (following.once(), log.batch) == ([], 0)
    seconds += HEARTBEAT_SECONDS
    assert (following.once(), log.batch) == ([], 1)
    known_until = log.reads["ns-a"].known_until
    assert first is not None
    assert known_until is not None
    assert known_until > first
    assert following.once() == []
    assert log.batch == 1


def test_another_spelling_of_an_address_goes_on_where_the_first_was(log: RouteLog) -> None:
    with serving(snapshot(*CHUNKS)) as fake:
        ingest(log, fake)
        fake.changes, fake.revision = {8: [gone("Other")]}, 8
        (batch,) = Ingester(ingest_options([Endpoint("localhost", fake.endpoint.port)], QUICK), log).once()
    assert [read.partition(",")[0] for read in batch.reads] == ["ns-a: changes"]
    assert list(log.reads) == ["ns-a"]


@dataclass
class Life:
    """What the ingests brought."""

    log: RouteLog
    batches: list[Appended] = field(default_factory=list)
    before_loss: datetime = NOT_YET
    after_loss: datetime = NOT_YET


def moment() -> datetime:
    """A time after all that has happened and before all that will: name servers tell theirs in whole milliseconds."""
    now = datetime.now(UTC)
    eventually(lambda: datetime.now(UTC) - now > timedelta(milliseconds=1))
    return now


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """Both know two brokers. Name server a loses one and gets it back, b is restarted without it and killed."""
    told = Life(RouteLog(Place(str(tmp_path_factory.mktemp("life")))))
    quiet = ("--scan-not-active-broker-interval-millis", "0")
    with ExitStack() as stack:
        first = stack.enter_context(NamesrvProcess("--name", "ns-a", *quiet))
        second = stack.enter_context(NamesrvProcess("--name", "ns-b", *quiet))
        a, b = (stack.enter_context(process.connect()) for process in (first, second))

        def take() -> None:
            told.batches.extend(Ingester(ingest_options([first.endpoint, second.endpoint], QUICK), told.log).once())

        for client in (a, b):
            register(client, "TopicTest", "Other")
            register(client, "TopicTest", name="broker-b", port=20911)
        told.before_loss = moment()
        take()
        unregister(a)
        told.after_loss = moment()
        register(a, "TopicTest", "Other", counter=2)
        take()
        second.kill()
        again = stack.enter_context(NamesrvProcess("--name", "ns-b", *quiet, port=second.endpoint.port))
        with again.connect() as b:
            register(b, "TopicTest", name="broker-b", port=20911)
            take()
        again.kill()
        take()
        take()
    return told


@pytest.fixture
def asked(life: Life) -> Iterator[Questions]:
    with questions(life.log.place) as asked:
        yield asked


def test_each_batch_says_what_it_brought(life: Life) -> None:
    read = [re.sub(r",.*", "", read) for batch in life.batches for read in batch.reads]
    assert read == ["ns-a: snapshot", "ns-b: snapshot", "ns-a: changes", "ns-b: snapshot", "ns-b: lost"]
    assert not any(batch.aside for batch in life.batches)


def test_a_topic_can_be_asked_for_its_past(life: Life, asked: Questions) -> None:
    def told(topic: str, at: datetime) -> list[tuple[str, str, str | None]]:
        found = asked.route_at(topic, at)
        return [(one["namesrv"], one["answer"], one["broker_name"]) for one in found]

    assert told("Other", life.before_loss) == [("ns-a", "not known", None), ("ns-b", "not known", None)]
    assert told("Other", life.after_loss) == [("ns-a", "no route", None), ("ns-b", "route", "broker-a")]
    after = [(one["namesrv"], one["broker_addrs"]) for one in asked.route_at("TopicTest", life.after_loss)]
    at = [(name, [broker["broker_addr"] for broker in brokers]) for name, brokers in after]
    assert at == [("ns-a", [B]), ("ns-b", [A]), ("ns-b", [B])]
    assert told("Other", NOT_YET) == [("ns-a", "not known", None), ("ns-b", "not known", None)]


def test_who_changed_a_topic_names_its_groups_and_brokers(asked: Questions) -> None:
    events = [(event["namesrv"], event["table_name"], event["end_reason"]) for event in asked.who_changed("Other")]
    assert sorted(events, key=str) == [
        ("ns-a", "broker_groups", "UNREGISTERED"),
        ("ns-a", "broker_groups", None),
        ("ns-a", "brokers", "UNREGISTERED"),
        ("ns-a", "brokers", None),
        ("ns-a", "topic_queues", "GROUP_GONE"),
        ("ns-a", "topic_queues", None),
        ("ns-b", "broker_groups", "NOT_IN_SNAPSHOT"),
        ("ns-b", "brokers", "NOT_IN_SNAPSHOT"),
        ("ns-b", "topic_queues", "NOT_IN_SNAPSHOT"),
    ]


def test_disagreements_have_a_beginning_and_an_end_by_either_clock(asked: Questions) -> None:
    def told(found: list[Row]) -> list[tuple[list[str], list[str], bool]]:
        of_key = [row for row in found if row["key"] == "Other/DefaultCluster/broker-a"]
        return [
            (row["have"], row["lack"], row["until"] is None) for row in sorted(of_key, key=lambda row: row["since"])
        ]

    assert told(asked.divergence("wall")) == [
        (["ns-b"], ["ns-a"], False),  # while a had lost the broker
        (["ns-a"], ["ns-b"], True),  # since b was restarted
    ]
    assert told(asked.divergence("wall", min_seconds=600)) == [(["ns-a"], ["ns-b"], True)]
    assert told(asked.divergence("ingest")) == [(["ns-a"], ["ns-b"], True)], "one ingest saw loss and return"
    assert [lead["namesrv"] for lead in asked.clock_leads()] == ["ns-a", "ns-b"]
    assert all(lead["seconds"] <= 0 for lead in asked.clock_leads())


def test_disagreements_are_summed_up_by_broker_and_by_what_began_them(asked: Questions) -> None:
    found = asked.divergence("wall")
    told = Counter((row["broker"], row["cause"], row["until"] is None) for row in found)
    assert told == {
        ("broker-a", "NOT_IN_SNAPSHOT: ns-b", True): 3,
        ("broker-a", "GROUP_GONE: ns-a", False): 2,
        ("broker-a", "UNREGISTERED: ns-a", False): 1,
        ("broker-a", "UNREGISTERED: ns-a", True): 1,
    }
    out = io.StringIO()
    console = Console(file=out, width=200, markup=False, highlight=False)
    tables.print_divergence(console, {"wall": found}, 1, 0)
    assert "disagreements by the clocks of the name servers, by broker and cause" in out.getvalue()
    assert "(the 1 most frequent of 3 are shown)" in out.getvalue()


def test_disagreements_with_a_name_server_that_is_not_read_say_so(log: RouteLog, pair: Pair) -> None:
    ingest(log, *pair)
    pair[0].changes, pair[0].revision = {8: [put("New", queue("broker-a")), gone("Other")]}, 8
    pair[1].refusal = RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "too late", reason="X", domain="namesrv.dev")
    ingest(log, *pair)
    with questions(log.place) as asked:
        told = Counter((one["cluster_name"], one["broker"], one["cause"]) for one in asked.divergence("ingest"))
    assert told == {("DefaultCluster", "broker-a", "NOT_READ: ns-b"): 2}


def test_the_report_names_the_lost_name_server_and_open_disagreements_as_charts_do(asked: Questions) -> None:
    data = collect_report(asked)
    assert [
        (one["namesrv"], one["lost"], one["topics"], one["queue_rows"], one["brokers"]) for one in data.namesrvs
    ] == [("ns-a", False, 2, 3, 2), ("ns-b", True, 1, 1, 1)]
    assert data.open_disagreements == 4
    tables_of = Counter(one["table_name"] for one in data.disagreements)
    assert tables_of == {"topic_queues": 2, "broker_groups": 1, "brokers": 1}
    charts = collect_charts(asked)
    ends = {what: {name: line[-1][1] for name, line in lines.items()} for what, lines in charts.over_time.items()}
    assert ends["topics"] == {one["namesrv"]: one["topics"] for one in data.namesrvs}
    assert ends["brokers"] == {one["namesrv"]: one["brokers"] for one in data.namesrvs}
    assert [row["name"] for row in charts.churn] == ["broker-a"]
    assert {"name": "topic_queues: GROUP_GONE", "number": 2} in charts.removals


def test_compaction_changes_no_answer_and_the_history_can_be_stored(life: Life) -> None:
    def told() -> list[Row]:
        return rows(life.log, "from history order by namesrv, table_name, key, valid_from_revision, valid_from_epoch")

    before = told()
    life.log.maintain(None, timedelta(hours=1))
    assert told() == before
    assert store_history(life.log.place) == len(before)
    assert store_history(life.log.place) == len(before), "in place of the first"


# A fleet on a virtual clock: the history is the expected one, and an answer that was given stays.

SEED = 9191
INGESTS = 12
SECONDS_BETWEEN = 300


def test_the_history_of_an_hour_is_the_expected_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        life = LoggedLife(Place(str(tmp_path / "log")), stack, SEED, "ns-a", "ns-b", "ns-c")
        log = life.open_log()
        for _ in range(INGESTS):
            life.go_on(SECONDS_BETWEEN)
            life.ingest(log)
        life.check()
    found = versions_of(life.place)
    reasons = Counter(version.end_reason for version in found)
    wanted = {None, "CHANGED", "NOT_IN_SNAPSHOT", "UNREGISTERED", "CHANNEL_CLOSED", "EXPIRED", "GROUP_GONE"}
    assert wanted <= set(reasons)
    assert life.expected.snapshots > len(life.namesrvs), "there were restarts or compactions"
    assert len(found) > 200


ROUNDS = 8


@pytest.mark.parametrize("seed", [1, 77, 9191])
def test_an_answer_that_was_given_stays(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    given: dict[tuple[str, str, datetime], list[str]] = {}
    kinds: set[str] = set()
    with ExitStack() as stack:
        life = LoggedLife(Place(str(tmp_path / "log")), stack, seed, "ns-a", "ns-b")
        log = life.open_log()
        for _ in range(ROUNDS):
            life.go_on(chance.uniform(1, 300))
            spelt = [Endpoint(chance.choice(["127.0.0.1", "localhost"]), one.endpoint.port) for one in life.namesrvs]
            if chance.random() < 0.3:
                log = life.open_log()
            options = ingest_options(spelt, OPTIONS | {"onCold": "read"})
            Ingester(options, log, restart=chance.random() < 0.2, follows=chance.random() < 0.5).once()
            if chance.random() < 0.3:
                log.maintain(None, timedelta(hours=1))
            with questions(life.place) as asked:
                begin = min(one["known_from"] for one in asked.ask("from known"))
                width = life.clock.wall() - begin.timestamp()
                moments = {at for _, _, at in given} | {begin + timedelta(seconds=chance.uniform(-9, width))}
                for topic, at in product(("Base", "Topic-1"), moments):
                    for namesrv, answer in _by_namesrv(asked.route_at(topic, at)).items():
                        kinds.add(answer[0].partition(" ")[0])
                        if "not known" not in answer[0]:
                            assert given.setdefault((topic, namesrv, at), answer) == answer
    assert kinds == {"route", "no", "not"}


def _by_namesrv(answers: list[Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    columns = ("cluster_name", "broker_name", "read_queue_nums", "write_queue_nums", "perm", "broker_addrs")
    for one in answers:
        found.setdefault(one["namesrv"], []).append(f"{one['answer']} {[one[column] for column in columns]}")
    return found
