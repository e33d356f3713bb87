"""An ingest is killed next to its commit, and a name server that is followed; the history stays what it should be."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from namesrv_common.endpoints import parse_endpoints
from route_pipeline.ingest import Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from tests.support.programs.processes import BIN, NamesrvProcess, Process, eventually
from tests.support.registrations import register
from tests.support.routes.fleet_life import OPTIONS, LoggedLife

SEED = 77
BETWEEN_INGESTS_SECONDS = 120
SECONDS = 120.0
"""By then an ingest has come to its commit, on a busy machine."""


def ingest_and_die(addresses: str, url: str, step: str) -> None:
    """Appends, and dies ``before the commit`` of the batch or ``after the commit``."""
    commit = DeltaTable.create_write_transaction

    def die(*arguments: Any, **named: Any) -> None:
        if step == "after the commit":
            commit(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    DeltaTable.create_write_transaction = die  # type: ignore[method-assign]
    Ingester(ingest_options(parse_endpoints(addresses), OPTIONS), RouteLog(Place(url))).once()


def test_an_ingest_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    with ExitStack() as stack:
        life = LoggedLife(Place(str(tmp_path / "log")), stack, SEED, "ns-a", "ns-b")
        addresses = ",".join(str(namesrv.endpoint) for namesrv in life.namesrvs)
        for step in ("before the commit", "after the commit", "before the commit"):
            life.go_on(BETWEEN_INGESTS_SECONDS)
            before = RouteLog(life.place).batch
            arguments = (addresses, life.place.url, step)
            ingest = multiprocessing.get_context("spawn").Process(target=ingest_and_die, args=arguments, daemon=True)
            ingest.start()
            ingest.join(SECONDS)
            assert ingest.exitcode == -signal.SIGKILL
            assert RouteLog(life.place).batch == before + (step == "after the commit")
            life.ingest(life.open_log())
        life.check()


def test_a_pipeline_goes_on_once_its_name_server_is_back(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def batches() -> int:
        return len(list(log.glob("changes/_delta_log/*.json")))

    with NamesrvProcess() as first, first.connect() as client:
        register(client, "TopicA")
        follow = ("follow", "--namesrv", str(first.endpoint), "--out", str(log), "--every", "1")
        options = ("--option", "connectTimeoutSeconds=2", "--log-format", "json")
        with Process([str(BIN / "route-pipeline"), *follow, *options]) as pipeline:
            before = eventually(batches, within_seconds=SECONDS)
            first.kill()
            problems = eventually(lambda: pipeline.events("problem"), within_seconds=SECONDS)
            assert [(line["level"], "trying again" in line["text"]) for line in problems[:1]] == [("warning", True)]
            with NamesrvProcess(port=first.endpoint.port) as second, second.connect() as again:
                register(again, "TopicA", "TopicB")
                eventually(batches, lambda now: now > before, SECONDS)
