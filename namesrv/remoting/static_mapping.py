"""The mapping of a static topic, as brokers of RocketMQ 5 report it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from groundwork.topic_rules import MAX_NAME_LENGTH, MAX_QUEUE_NUMS
from namesrv.core.records.rows import StaticMapping

_HIGHEST_INT = 2**31 - 1
_HIGHEST_LONG = 2**63 - 1
_QUEUE = re.compile(r"\d{1,10}")


def mapping_of(value: object) -> StaticMapping:
    """Reads a TopicQueueMappingInfo. Raises ValueError, whose text says what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError("has a mapping that is no object")  # noqa: TRY004 - it is input, and not our mistake
    scope, ids = value.get("scope", ""), value.get("currIdMap", {})
    if not (isinstance(scope, str) and len(scope) <= MAX_NAME_LENGTH and scope.isascii() and scope.isprintable()):
        raise ValueError(f"has a mapping whose scope is no name of at most {MAX_NAME_LENGTH} characters")
    total, epoch = _number(value, "totalQueues", _HIGHEST_INT), _number(value, "epoch", _HIGHEST_LONG)
    if not isinstance(ids, dict) or len(ids) > MAX_QUEUE_NUMS:
        raise ValueError(f"has a mapping whose currIdMap is no object of at most {MAX_QUEUE_NUMS} queues")
    return StaticMapping(scope, total, epoch, value.get("dirty") is True, tuple(sorted(_queue_ids(ids))))


def _number(value: dict[str, Any], name: str, highest: int) -> int:
    number = value.get(name, 0)
    if type(number) is not int or not 0 <= number <= highest:
        raise ValueError(f"has a mapping whose {name} is no number from 0 to {highest}")
    return number


def _queue_ids(ids: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for topic_queue, broker_queue in ids.items():
        is_number = _QUEUE.fullmatch(topic_queue) is not None and type(broker_queue) is int
        if not (is_number and int(topic_queue) <= _HIGHEST_INT and 0 <= broker_queue <= _HIGHEST_INT):
            raise ValueError(f"has a mapping whose queues are no numbers from 0 to {_HIGHEST_INT}")
        yield int(topic_queue), broker_queue
