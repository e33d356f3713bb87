"""topicQueueMapping.json next to a followed topics.json: its mappings are the topics', and its faults are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_agent.errors import StartError
from broker_agent.topics.followed_files import BROKEN_SECONDS
from broker_agent.topics.mappings_json import mappings_path
from broker_agent.topics.owned_file import copy_of
from broker_agent.topics.table import TopicConfigTable
from tests.support.static_topics import mappings_json
from tests.unit.broker_agent.topics.followed.files import Passing, content, events, follower, seen


def with_static(counter: int) -> bytes:
    hosted = {str(queue): [{"bname": "b", "queueId": queue}] for queue in range(counter)}
    return mappings_json({"topic-1": {"bname": "b", "hostedQueues": hosted, "epoch": 1, "totalQueues": 9}}, counter)


def mapped(table: TopicConfigTable | None) -> tuple[int, int]:
    """Queues in the mapping of the only topic, and the counter of the version."""
    assert table is not None
    (topic,) = table.topics
    return len(topic.mapping.queue_ids if topic.mapping else ()), table.data_version.counter


def test_mappings_are_seen_when_they_come_and_when_they_change(path: Path, time: Passing) -> None:
    followed = follower(path, time)
    mappings = mappings_path(path)
    assert mapped(followed.first_table()) == (0, 1)
    mappings.write_bytes(with_static(1))
    assert mapped(seen(followed)) == (1, 2)
    assert followed.look() is None
    mappings.write_bytes(with_static(2))
    assert mapped(seen(followed)) == (2, 3)
    path.write_bytes(content(1).replace(b'"perm":6', b'"perm":4'))
    assert mapped(seen(followed)) == (2, 3)
    assert mapped(follower(path, time).first_table()) == (2, 3)  # the same version after a restart


def test_mappings_that_are_gone_or_broken_stay_as_they_were_and_are_a_fault_after_a_while(
    path: Path, time: Passing
) -> None:
    mappings = mappings_path(path)
    mappings.write_bytes(with_static(1))
    followed = follower(path, time)
    assert mapped(followed.first_table()) == (1, 2)

    def faults() -> list[str]:
        return [] if followed.problem is None else [followed.problem]

    mappings.unlink()
    assert seen(followed) is None
    assert faults() == []
    time.advance(BROKEN_SECONDS)
    assert followed.look() is None
    assert faults() == ["topicQueueMapping.json: No such file or directory"]
    mappings.write_bytes(with_static(3))
    assert mapped(seen(followed)) == (3, 4)
    assert faults() == []


def test_broken_mappings_end_the_start_with_the_name_of_the_file_unless_there_is_a_copy(
    path: Path, time: Passing
) -> None:
    mappings = mappings_path(path)
    mappings.write_bytes(b"{")
    with pytest.raises(StartError, match=r"topicQueueMapping\.json: not JSON, or cut off"):
        follower(path, time).first_table()
    copy_of(mappings).write_bytes(with_static(1))
    assert mapped(follower(path, time).first_table()) == (1, 2)


def test_a_mapping_that_breaks_a_rule_is_left_out_and_named_and_its_topic_stays(path: Path, time: Passing) -> None:
    mappings_path(path).write_bytes(mappings_json({"topic-1": {"totalQueues": -1}}))
    with capture_logs() as logs:
        followed = follower(path, time)
        assert mapped(followed.first_table()) == (0, 2)
    assert followed.problem == "mapping of 'topic-1': totalQueues is -1, must be an integer from 0 to 2147483647"
    assert events(logs) == [("mappings_skipped", "warning")]
