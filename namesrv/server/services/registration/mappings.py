"""Mappings of static topics in registrations: every rule on them, with an error that names field and limit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from namesrv_api.v1 import route_data_pb2

from groundwork.topic_rules import MAX_QUEUE_NUMS
from namesrv.core.errors import InvalidField
from namesrv.core.records.rows import StaticMapping
from namesrv.server.services.field_rules import check_name


def static_mapping(where: str, topic: str, message: route_data_pb2.StaticTopicMapping) -> StaticMapping:
    """Checks a mapping.

    Args:
        where: Path of the mapping in the request.
        topic: Whose it is, for errors.
        message: The mapping.

    Raises:
        InvalidField: A part breaks its rule.
    """
    if message.scope:
        check_name(f"{where}.scope", message.scope)
    for part in ("total_queue_nums", "epoch"):
        if getattr(message, part) < 0:
            raise InvalidField(f"{where}.{part}", f"is {getattr(message, part)} for {topic!r}, must not be negative")
    topic_ids, broker_ids = list(message.topic_queue_ids), list(message.broker_queue_ids)
    if len(topic_ids) != len(broker_ids):
        problem = f"has {len(broker_ids)} queues for {topic!r}, must have {len(topic_ids)}, as many as topic_queue_ids"
        raise InvalidField(f"{where}.broker_queue_ids", problem)
    _check_range(f"{where}.topic_queue_ids", topic, topic_ids, message.total_queue_nums, "total_queue_nums - 1")
    _check_range(f"{where}.broker_queue_ids", topic, broker_ids, MAX_QUEUE_NUMS, "the highest queue of a group")
    for lower, higher in itertools.pairwise(topic_ids):
        if lower >= higher:
            raise InvalidField(f"{where}.topic_queue_ids", f"has {higher} after {lower} for {topic!r}, must ascend")
    queue_ids = tuple(zip(topic_ids, broker_ids, strict=True))
    return StaticMapping(message.scope, message.total_queue_nums, message.epoch, message.dirty, queue_ids)


def _check_range(field: str, topic: str, numbers: Sequence[int], end: int, limit: str) -> None:
    for number in (min(numbers), max(numbers)) if numbers else ():
        if not 0 <= number < end:
            raise InvalidField(field, f"has {number} for {topic!r}, must be 0 to {end - 1}, {limit}")
