"""Files of RocketMQ's brokers with static topics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REAL_MAPPINGS = (Path(__file__).parents[1] / "fuzz/corpus/topic_queue_mappings/of_5.5.0.json").read_bytes()
"""What a broker of 5.5.0 has written, shortened by two queues, and with one field that nobody knows."""


def mappings_json(details: Mapping[str, Any], counter: int = 1) -> bytes:
    """A topicQueueMapping.json with these mappings (RocketMQ: TopicQueueMappingDetail)."""
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1_000}
    return json.dumps({"dataVersion": version, "topicQueueMappingInfoMap": details}).encode()
