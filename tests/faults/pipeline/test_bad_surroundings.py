"""What goes wrong around the pipeline: a name server that goes away."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.programs.processes import NamesrvProcess, PipelineProcess, eventually
from tests.support.registrations import register

SECONDS = 60.0


def test_it_goes_on_once_its_name_server_is_back(tmp_path: Path) -> None:
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
