"""What an agent sends while nothing happens: next to nothing, however many topics its broker has."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from broker_agent.timing import RegistrationSchedule
from tests.support.agents.fixtures import MakeSettings, StartNameServer
from tests.support.agents.running_agent import Agent
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock

TOPICS = 10_000
TEN_HOURS = 36_000.0


class TenHours(RegistrationSchedule):
    """The usual schedule on virtual time, which passes as fast as rounds can be made, and stops after ten hours."""

    def __init__(self) -> None:
        self.time = VirtualClock()
        super().__init__(30.0, agent_timing(self.time))
        self._end = self.time.seconds + TEN_HOURS
        self.over = threading.Event()

    def next_delay(self) -> float:
        self.time.advance(super().next_delay())
        if self.time.seconds < self._end:
            return 0.0
        self.over.set()
        return TEN_HOURS


def many_topics(folder: Path) -> Path:
    file = folder / "topics.json"
    queues = {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
    topics = {f"Topic-{i:05}": queues for i in range(TOPICS)}
    file.write_text(json.dumps({"dataVersion": {"timestamp": 1, "counter": 1}, "topicConfigTable": topics}))
    return file


def test_an_idle_agent_sends_its_table_only_at_its_start(
    name_server: StartNameServer, settings: MakeSettings, tmp_path: Path
) -> None:
    server = name_server()
    schedule = TenHours()
    controller = Agent(settings(server, topics=many_topics(tmp_path)), server, schedule=schedule).controller
    controller.start()
    try:
        assert schedule.over.wait(100)
    finally:
        controller.stop()
    assert [len(request.topic_configs) for request in server.registrations] == [TOPICS]
    assert 1_190 <= len(server.queries) <= 1_210  # one each 30 s
