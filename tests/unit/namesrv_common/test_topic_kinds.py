"""What a topic's name says about it."""

from __future__ import annotations

import pytest

from namesrv_common.topic_names import TopicKind, application_first, kind_of


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("orders", TopicKind.NORMAL),
        ("orders%RETRY%", TopicKind.NORMAL),
        ("_REPLY_TOPIC", TopicKind.NORMAL),
        ("west_REPLY_TOPIC", TopicKind.NORMAL),
        ("%RETRY%billing", TopicKind.RETRY),
        ("%DLQ%billing", TopicKind.DEAD_LETTER),
        ("SCHEDULE_TOPIC_XXXX", TopicKind.SYSTEM),
        ("BenchmarkTest", TopicKind.SYSTEM),
        ("CHECKPOINT_TOPIC", TopicKind.SYSTEM),
        ("DefaultHeartBeatSyncerTopic", TopicKind.SYSTEM),
        ("OFFSET_MOVED_EVENT", TopicKind.SYSTEM),
        ("RMQ_SYS_ROCKSDB_OFFSET_TOPIC", TopicKind.SYSTEM),
        ("RMQ_SYS_TRACE_TOPIC", TopicKind.SYSTEM),
        ("RMQ_SYS_TRANS_HALF_TOPIC", TopicKind.SYSTEM),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", TopicKind.SYSTEM),
        ("SELF_TEST_TOPIC", TopicKind.SYSTEM),
        ("TBW102", TopicKind.SYSTEM),
        ("TRANS_CHECK_MAX_TIME_TOPIC", TopicKind.SYSTEM),
        ("rmq_sys_REVIVE_LOG_east", TopicKind.SYSTEM),
        ("rmq_sys_wheel_timer", TopicKind.SYSTEM),
        ("east", TopicKind.SYSTEM),
        ("broker-a", TopicKind.SYSTEM),
        ("east_REPLY_TOPIC", TopicKind.SYSTEM),
    ],
)
def test_a_kind_goes_by_conventions_and_the_names_of_clusters_and_brokers(topic: str, kind: TopicKind) -> None:
    assert kind_of(topic, {"east", "broker-a"}) is kind


def test_lists_have_applications_topics_first() -> None:
    topics = ["%DLQ%g", "%RETRY%g", "BenchmarkTest", "broker-a", "east", "orders", "Zebra"]
    assert application_first(topics, {"east", "broker-a"}) == [
        "Zebra",
        "orders",
        "%DLQ%g",
        "%RETRY%g",
        "BenchmarkTest",
        "broker-a",
        "east",
    ]
