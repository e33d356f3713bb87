from __future__ import annotations

import pytest

from broker_agent.topics.table import built_in_topics, is_system_topic


def as_upstream(cluster: str, broker_name: str) -> dict[str, tuple[int, int]]:
    topics = built_in_topics(cluster, broker_name)
    assert all(topic.read_queue_nums == topic.write_queue_nums for topic in topics)
    return {topic.topic_name: (topic.read_queue_nums, topic.perm) for topic in topics}


def test_the_built_in_topics_are_upstreams() -> None:
    assert as_upstream("DefaultCluster", "broker-a") == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
    }


def test_a_broker_named_like_its_cluster_has_one_topic_of_that_name() -> None:
    topics = built_in_topics("same", "same")
    assert [topic.read_queue_nums for topic in topics if topic.topic_name == "same"] == [1]


@pytest.mark.parametrize("name", ["TBW102", "rmq_sys_anything", "SCHEDULE_TOPIC_XXXX", "broker-a"])
def test_the_brokers_own_topics_are_system_topics(name: str) -> None:
    assert is_system_topic(name, frozenset({"broker-a"}))


@pytest.mark.parametrize("name", ["TopicTest", "RMQ_SYS", "%RETRY%group", "broker-b"])
def test_other_topics_are_not(name: str) -> None:
    assert not is_system_topic(name, frozenset({"broker-a"}))
