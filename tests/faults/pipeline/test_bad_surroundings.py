"""What goes wrong around the pipeline: a name server that goes away."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from tests.faults.fleet.pipeline import Pipeline
from tests.faults.history import History
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import registration

SECONDS = 60.0
TIMEOUT = 10.0


def register(server: NamesrvProcess, *topics: str) -> None:
    with server.connect() as client:
        client.registration.RegisterBroker(registration(topics), timeout=TIMEOUT)


def test_it_goes_on_once_its_name_server_is_back(tmp_path: Path) -> None:
    with NamesrvProcess() as first, closing(History(tmp_path / "history.jsonl")) as history:
        register(first, "TopicA")
        with Pipeline(tmp_path, history, [str(first.endpoint)]) as pipeline:
            pipeline.wait_for_batch(SECONDS)
            first.kill()
            told = eventually(lambda: pipeline.said("trying again"), within_seconds=SECONDS)
            assert {json.loads(line)["level"] for line in told} == {"warning"}
            with NamesrvProcess(port=first.endpoint.port) as second:
                register(second, "TopicA", "TopicB")
                pipeline.wait_for_batch(SECONDS)
