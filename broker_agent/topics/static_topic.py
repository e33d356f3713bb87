"""The mapping of a static topic: which of the topic's queues a broker has now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicQueueMapping:
    """Which queues of a static topic are on the broker now (RocketMQ: TopicQueueMappingInfo)."""

    scope: str
    """Groups that share the topic's queues."""
    total_queues: int
    """Queues of the topic on all of these groups together."""
    epoch: int
    """When the mapping was made; of two mappings of one queue, the one with the higher epoch counts."""
    is_dirty: bool
    """As the broker says it."""
    queue_ids: tuple[tuple[int, int], ...]
    """Queue of the topic, and the broker's own queue that it is: by ascending queue of the topic (currIdMap)."""
