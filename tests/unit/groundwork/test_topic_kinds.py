"""What a topic's name says about it."""

from __future__ import annotations

import pytest

from groundwork.topic_names import TopicKind, kind_of


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
        ("rmq_sys_REVIVE_LOG_east", TopicKind.SYSTEM),
        ("east", TopicKind.SYSTEM),
        ("broker-a", TopicKind.SYSTEM),
        ("east_REPLY_TOPIC", TopicKind.SYSTEM),
    ],
)
def test_a_kind_goes_by_conventions_and_the_names_of_clusters_and_brokers(topic: str, kind: TopicKind) -> None:
    assert kind_of(topic, {"east", "broker-a"}) is kind
