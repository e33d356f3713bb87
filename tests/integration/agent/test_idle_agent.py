"""What an agent sends while nothing happens: next to nothing, however many topics its broker has."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from broker_agent.settings import AgentSettings
from broker_agent.timing import RegistrationSchedule
from tests.support.agents.controllers import controller_of
from tests.support.fakes.registering_name_server import FakeNameServer
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


def ten_idle_hours(settings: AgentSettings) -> None:
    schedule = TenHours()
    controller = controller_of(settings, schedule)
    controller.start()
    try:
        assert schedule.over.wait(100)
    finally:
        controller.stop()


def many_topics(folder: Path) -> Path:
    file = folder / "topics.json"
    queues = {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
    topics = {f"Topic-{i:05}": queues for i in range(TOPICS)}
    file.write_text(json.dumps({"dataVersion": {"timestamp": 1, "counter": 1}, "topicConfigTable": topics}))
    return file


def test_an_idle_agent_sends_its_table_only_at_its_start(
    name_server: Callable[..., FakeNameServer], settings: Callable[..., AgentSettings], tmp_path: Path
) -> None:
    server = name_server()
    ten_idle_hours(settings(server, topics=many_topics(tmp_path)))
    assert [len(request.topic_configs) for request in server.registrations] == [TOPICS]
    assert 1_190 <= len(server.queries) <= 1_210  # one each 30 s
