"""Files of RocketMQ's brokers with static topics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

REAL_MAPPINGS = b"""{
\t"dataVersion":{
\t\t"counter":1,
\t\t"stateVersion":0,
\t\t"timestamp":1795395000380
\t},
\t"topicQueueMappingInfoMap":{
\t\t"Static":{
\t\t\t"bname":"broker-c",
\t\t\t"currIdMap":{},
\t\t\t"dirty":false,
\t\t\t"epoch":1795395001105,
\t\t\t"hostedQueues":{
\t\t\t\t0:[
\t\t\t\t\t{
\t\t\t\t\t\t"bname":"broker-c",
\t\t\t\t\t\t"endOffset":-1,
\t\t\t\t\t\t"gen":0,
\t\t\t\t\t\t"logicOffset":0,
\t\t\t\t\t\t"queueId":0,
\t\t\t\t\t\t"startOffset":0,
\t\t\t\t\t\t"timeOfEnd":-1,
\t\t\t\t\t\t"timeOfStart":-1
\t\t\t\t\t}
\t\t\t\t],
\t\t\t\t1:[
\t\t\t\t\t{
\t\t\t\t\t\t"bname":"broker-c",
\t\t\t\t\t\t"endOffset":-1,
\t\t\t\t\t\t"gen":0,
\t\t\t\t\t\t"logicOffset":0,
\t\t\t\t\t\t"queueId":1,
\t\t\t\t\t\t"startOffset":0,
\t\t\t\t\t\t"timeOfEnd":-1,
\t\t\t\t\t\t"timeOfStart":-1
\t\t\t\t\t}
\t\t\t\t]
\t\t\t},
\t\t\t"new":"x",
\t\t\t"scope":"__global__",
\t\t\t"topic":"Static",
\t\t\t"totalQueues":4
\t\t}
\t}
}"""
"""What a broker of 5.5.0 has written, shortened by two queues, and with one field that nobody knows."""


def mappings_json(details: Mapping[str, Any], counter: int = 1) -> bytes:
    """A topicQueueMapping.json with these mappings (RocketMQ: TopicQueueMappingDetail)."""
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1_000}
    return json.dumps({"dataVersion": version, "topicQueueMappingInfoMap": details}).encode()
