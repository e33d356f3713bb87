"""An ingest is killed next to its commit, and a name server that is followed; the history stays what it should be."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from tests.support.programs.processes import NamesrvProcess, PipelineProcess, eventually
from tests.support.registrations import register
from tests.support.routes.fleet_life import LoggedLife

ROOT = Path(__file__).parents[2]
SEED = 77
BETWEEN_INGESTS_SECONDS = 120
SECONDS = 120.0
"""By then an ingest has come to its commit, on a busy machine."""


def test_an_ingest_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    with ExitStack() as stack:
        life = LoggedLife(Place(str(tmp_path / "log")), stack, SEED, "ns-a", "ns-b")
        addresses = ",".join(str(namesrv.endpoint) for namesrv in life.namesrvs)
        for step in ("before the commit", "after the commit", "before the commit"):
            life.go_on(BETWEEN_INGESTS_SECONDS)
            before = RouteLog(life.place).batch
            command = [sys.executable, "-m", "tests.faults.killed_ingest", addresses, life.place.url, step]
            assert subprocess.run(command, cwd=ROOT, timeout=SECONDS, check=False).returncode == -signal.SIGKILL
            assert RouteLog(life.place).batch == before + (step == "after the commit")
            life.ingest(life.open_log())
        life.check()


def test_a_pipeline_goes_on_once_its_name_server_is_back(tmp_path: Path) -> None:
    said, log = tmp_path / "said", tmp_path / "log"

    def batches() -> int:
        return len(list(log.glob("changes/_delta_log/*.json")))

    with NamesrvProcess() as first, first.connect() as client:
        register(client, "TopicA")
        options = ("--option", "connectTimeoutSeconds=2", "--log-format", "json")
        follow = ("follow", "--namesrv", str(first.endpoint), "--out", str(log), "--every", "1", *options)
        with PipelineProcess(said, *follow):
            before = eventually(batches, within_seconds=SECONDS)
            first.kill()
            lines = eventually(
                lambda: [line for line in said.read_text().splitlines()[:-1] if "trying again" in line],
                within_seconds=SECONDS,
            )
            assert {json.loads(line)["level"] for line in lines} == {"warning"}
            with NamesrvProcess(port=first.endpoint.port) as second, second.connect() as again:
                register(again, "TopicA", "TopicB")
                eventually(batches, lambda now: now > before, SECONDS)
