"""kill -9 of an agent in the middle of a write: what was answered is in topics.json, whatever was half done."""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path

import pytest

from broker_agent.topics.files import load_topic_config_table
from broker_agent.topics.storage import copy_of
from tests.support.programs.processes import Process, eventually

pytestmark = pytest.mark.slow

ROUNDS = 5
CHANGES = """
import json, structlog, sys
from pathlib import Path
from broker_agent.topics.table import TopicConfig
from broker_agent.topics.manager import TopicConfigManager

structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
manager = TopicConfigManager.own(Path(sys.argv[1]), [])
for number in range(10**6):
    queues = (manager.table.data_version.counter + 1) % 60_000
    topic = TopicConfig(f"topic-{number % 500}", queues, 1, 6)
    change = manager.edit(topic.topic_name, lambda _: topic)
    sys.stderr.write(json.dumps({"event": "changed", "counter": change.data_version.counter}) + "\\n")
"""


def _has_changed(process: Process, times: int) -> bool:
    return len(process.events("changed")) >= times


def test_the_last_answered_change_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    file, rng = tmp_path / "topics.json", random.Random(1)
    before = 0
    for _ in range(ROUNDS):
        with Process([sys.executable, "-c", CHANGES, str(file)]) as process:
            process.wait_for("changed")
            eventually(partial(_has_changed, process, rng.randrange(1, 60)))
            process.kill()
            process._reader.join(10)
            answered = process.events("changed")[-1]["counter"]
        table = load_topic_config_table(file)
        assert answered <= table.data_version.counter <= answered + 1
        assert table.data_version.counter > before
        if copy_of(file).exists():
            assert load_topic_config_table(copy_of(file)).data_version.counter >= answered - 2
        before = table.data_version.counter
