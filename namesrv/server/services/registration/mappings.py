"""Mappings of static topics in registrations: every rule on them, with an error that names field and limit."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2

from groundwork.topic_rules import MAX_QUEUE_NUMS
from namesrv.core.errors import InvalidField
from namesrv.core.model import StaticMapping
from namesrv.core.slices import Sliced
from namesrv.server.services.field_rules import check_name

MAPPED_SLICE = 2_500
"""Queues of mappings that are read before giving way: about a millisecond."""


def static_mapping(where: str, topic: str, message: route_data_pb2.StaticTopicMapping) -> Sliced[StaticMapping]:
    """Checks a mapping, in steps if it has many queues.

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
    topic_ids, broker_ids = message.topic_queue_ids, message.broker_queue_ids
    if len(topic_ids) != len(broker_ids):
        problem = f"has {len(broker_ids)} queues for {topic!r}, must have {len(topic_ids)}, as many as topic_queue_ids"
        raise InvalidField(f"{where}.broker_queue_ids", problem)
    queue_ids: list[tuple[int, int]] = []
    last = -1
    for count, (topic_id, broker_id) in enumerate(zip(topic_ids, broker_ids, strict=True), 1):
        if not 0 <= topic_id < message.total_queue_nums:
            problem = f"has {topic_id} for {topic!r}, must be 0 to {message.total_queue_nums - 1}, total_queue_nums - 1"
            raise InvalidField(f"{where}.topic_queue_ids", problem)
        if topic_id <= last:
            raise InvalidField(f"{where}.topic_queue_ids", f"has {topic_id} after {last} for {topic!r}, must ascend")
        if not 0 <= broker_id < MAX_QUEUE_NUMS:
            problem = f"has {broker_id} for {topic!r}, must be 0 to {MAX_QUEUE_NUMS - 1}"
            raise InvalidField(f"{where}.broker_queue_ids", problem)
        queue_ids.append((topic_id, broker_id))
        last = topic_id
        if count % MAPPED_SLICE == 0:
            yield
    return StaticMapping(message.scope, message.total_queue_nums, message.epoch, message.dirty, tuple(queue_ids))
