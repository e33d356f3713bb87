"""Lives of a fleet on a virtual clock: the history is the expected one, and an answer that was given stays."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from namesrv_common.endpoints import Endpoint
from route_pipeline.ingest import Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from route_pipeline.questions import Row, questions
from tests.support.routes.fleet_life import ExpectedHistory, FleetLife, LivingNamesrv
from tests.support.routes.route_history import versions_of
from tests.support.virtual_clock import VirtualClock

SEED = 9191
INGESTS = 12
SECONDS_BETWEEN = 300


def test_the_history_of_an_hour_is_the_expected_one(tmp_path: Path) -> None:
    clock = VirtualClock()
    place = Place(str(tmp_path / "log"))
    log = RouteLog(place, now=lambda: datetime.fromtimestamp(clock.wall_millis() / 1000, UTC))
    expected = ExpectedHistory()
    with ExitStack() as stack:
        namesrvs = [stack.enter_context(LivingNamesrv(name, clock)) for name in ("ns-a", "ns-b", "ns-c")]
        life = FleetLife(SEED, namesrvs, clock)
        for number in range(INGESTS):
            if all(namesrv.lost for namesrv in namesrvs) or number == 0:
                life.end_outages()
            endpoints = [namesrv.endpoint for namesrv in namesrvs]
            Ingester(ingest_options(endpoints, {"onCompacted": "resync"}), log).once()
            for namesrv in namesrvs:
                expected.ingest(namesrv, clock.wall_millis())
            life.pass_time(SECONDS_BETWEEN)

    found = versions_of(place)
    assert sorted(found, key=repr) == sorted(expected.ended(), key=repr)
    reasons = Counter(version.end_reason for version in found)
    wanted = {None, "CHANGED", "NOT_IN_SNAPSHOT", "UNREGISTERED", "CHANNEL_CLOSED", "EXPIRED", "GROUP_GONE"}
    assert wanted <= set(reasons)
    assert expected.snapshots > len(namesrvs), "there were restarts or compactions"
    assert len(found) > 200


OPTIONS = {"onCompacted": "resync", "onCold": "read", "connectTimeoutSeconds": "1"}
TOPICS = ("Base", "Topic-1")
ROUNDS = 8


@pytest.mark.parametrize("seed", [1, 77, 9191])
def test_an_answer_that_was_given_stays(tmp_path: Path, seed: int) -> None:
    clock, chance = VirtualClock(), random.Random(seed)
    place = Place(str(tmp_path / "log"))

    def now() -> datetime:
        return datetime.fromtimestamp(clock.wall_millis() / 1000, UTC)

    given: dict[tuple[str, str, datetime], list[str]] = {}
    kinds: set[str] = set()
    with ExitStack() as stack:
        namesrvs = [stack.enter_context(LivingNamesrv(name, clock)) for name in ("ns-a", "ns-b")]
        life = FleetLife(seed, namesrvs, clock)
        log = RouteLog(place, now=now)
        for number in range(ROUNDS):
            life.pass_time(chance.uniform(1, 300))
            if number == 0:
                life.end_outages()
            spelt = [Endpoint(chance.choice(["127.0.0.1", "localhost"]), one.endpoint.port) for one in namesrvs]
            if chance.random() < 0.3:
                log = RouteLog(place, now=now)
            if all(namesrv.lost for namesrv in namesrvs):
                life.end_outages()
            options = ingest_options(spelt, OPTIONS)
            Ingester(options, log, restart=chance.random() < 0.2, follows=chance.random() < 0.5).once()
            if chance.random() < 0.3:
                log.maintain(None, timedelta(hours=1))
            with questions(place) as asked:
                begin = min(one["known_from"] for one in asked.ask("from known"))
                width = (now() - begin).total_seconds()
                moments = {at for _, _, at in given} | {begin + timedelta(seconds=chance.uniform(-9, width))}
                for topic, at in product(TOPICS, moments):
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
