"""Files of a broker that tests write, and what follows them on a clock that passes by itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from broker_agent.topics.followed_files import FollowedTopics
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topics_json import encode_topics
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock


def table(counter: int) -> TopicConfigTable:
    return TopicConfigTable(DataVersion(1_000, counter), (TopicConfig(f"topic-{counter}", 4, 4, 6),))


def content(counter: int) -> bytes:
    return encode_topics(table(counter))


class Passing(VirtualClock):
    """Time that passes by itself whenever somebody waits."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.advance(seconds)
        return event.is_set()


def follower(path: Path, time: Passing) -> FollowedTopics:
    return FollowedTopics(path, agent_timing(time), time.wait)


def seen(followed: FollowedTopics) -> TopicConfigTable | None:
    """What a follower sees of a change, which must look the same twice."""
    assert followed.look() is None
    return followed.look()


def events(logs: Any) -> list[tuple[str, str]]:
    return [(line["event"], line["log_level"]) for line in logs]
