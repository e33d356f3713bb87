"""Lives of a fleet on a virtual clock: the history is the expected one, and an answer that was given stays."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from namesrv_common.endpoints import Endpoint
from route_pipeline.ingest import Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.questions import Row, questions
from tests.support.routes.fleet_life import OPTIONS, LoggedLife, versions_of

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


TOPICS = ("Base", "Topic-1")
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
