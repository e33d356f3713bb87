"""Changes of a broker's topics, as a call of an operator makes them."""

from __future__ import annotations

from broker_agent.topics.manager import TopicConfigChange, TopicConfigManager
from broker_agent.topics.table import TopicConfig


def put_topic(manager: TopicConfigManager, topic: TopicConfig) -> TopicConfigChange:
    return manager.edit(topic.topic_name, lambda _before: topic)
