"""The mapping of a static topic, as brokers of RocketMQ 5 report it."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable
from typing import Any

from groundwork.topic_rules import MAX_MAPPED_QUEUES, MAX_NAME_LENGTH, MAX_QUEUE_NUMS
from namesrv.core.errors import LimitExceeded
from namesrv.core.model import StaticMapping
from namesrv.core.slices import Sliced, sorted_in_slices
from namesrv.remoting.wire.json_reader import ObjectReader

MEMBERS_SLICE = 250
"""Members of a mapping that are read before giving way: about a millisecond."""

PLAIN_SLICE = 1_000
"""The same of queues in the form in which RocketMQ writes them: about half a millisecond."""

PAIRED_SLICE = 5_000
"""Queues that are made pairs before giving way: about a millisecond."""

_HIGHEST_INT = 2**31 - 1
_HIGHEST_LONG = 2**63 - 1
_QUEUE = re.compile(r"[0-9]{1,10}")
_PLAIN = re.compile(r',(?:([0-9]{1,10})|"([0-9]{1,10})"):(0|[1-9][0-9]{0,9})(?=[,}])')
"""A queue behind another one, as RocketMQ writes it. Whatever is written otherwise is read by a JSON parser."""


class _QueueIds(dict[int, int]):
    """A currIdMap that was read in steps."""

    count = 0
    """Queues that were read, also those that are not kept."""
    is_sound = True
    """Whether all of them are numbers."""


def take_mapping(reader: ObjectReader) -> Sliced[object]:
    """Takes a value as ``mapping_of`` wants it, in steps: a topic may have tens of thousands of queues.

    Raises:
        InvalidField: It is no JSON.
        LimitExceeded: It has too many queues.
    """
    if not reader.is_at_object:
        return reader.take()
    inner = reader.opened()
    value: dict[str, Any] = {}
    for count, name in enumerate(inner, 1):
        if name == "currIdMap" and inner.is_at_object:
            value[name] = yield from _take_queue_ids(inner)
        else:
            value[name] = inner.take()
        if count % MEMBERS_SLICE == 0:
            yield
    reader.close(inner)
    return value


def mapping_of(value: object) -> Sliced[StaticMapping]:
    """Checks a TopicQueueMappingInfo, in steps. Raises ValueError, whose text says what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError("has a mapping that is no object")  # noqa: TRY004 - it is input, and not our mistake
    scope, ids = value.get("scope", ""), value.get("currIdMap", _QueueIds())
    if not (isinstance(scope, str) and len(scope) <= MAX_NAME_LENGTH and scope.isascii() and scope.isprintable()):
        raise ValueError(f"has a mapping whose scope is no name of at most {MAX_NAME_LENGTH} characters")
    total, epoch = _number(value, "totalQueues", _HIGHEST_INT), _number(value, "epoch", _HIGHEST_LONG)
    if not isinstance(ids, _QueueIds) or ids.count > MAX_QUEUE_NUMS:
        raise ValueError(f"has a mapping whose currIdMap is no object of at most {MAX_QUEUE_NUMS} queues")
    if not ids.is_sound or max(ids, default=0) > _HIGHEST_INT or max(ids.values(), default=0) > _HIGHEST_INT:
        raise ValueError(f"has a mapping whose queues are no numbers from 0 to {_HIGHEST_INT}")
    if ids.count > PLAIN_SLICE:
        yield
    return StaticMapping(scope, total, epoch, value.get("dirty") is True, (yield from _in_order(ids)))


def _number(value: dict[str, Any], name: str, highest: int) -> int:
    number = value.get(name, 0)
    if type(number) is not int or not 0 <= number <= highest:
        raise ValueError(f"has a mapping whose {name} is no number from 0 to {highest}")
    return number


def _take_queue_ids(reader: ObjectReader) -> Sliced[_QueueIds]:
    inner = reader.opened()
    ids = _QueueIds()
    for count, name in enumerate(inner, 1):
        value = inner.take()
        if _QUEUE.fullmatch(name) is not None and type(value) is int and value >= 0:
            ids[int(name)] = value
        else:
            ids.is_sound = False
        _count(ids, 1)
        yield from _take_plain(inner, ids)
        if count % MEMBERS_SLICE == 0:
            yield
    reader.close(inner)
    return ids


def _take_plain(reader: ObjectReader, ids: _QueueIds) -> Sliced[None]:
    """Takes all queues that follow in the form in which RocketMQ writes them, up to one in another form."""
    text, at, match = reader.text, reader.at, _PLAIN.match
    count = 0
    while (found := match(text, at)) is not None:
        at = found.end()
        ids[int(found[1] or found[2])] = int(found[3])
        count += 1
        if count == PLAIN_SLICE:
            _count(ids, count)
            count = 0
            yield
    _count(ids, count)
    reader.at = at


def _count(ids: _QueueIds, more: int) -> None:
    ids.count += more
    if ids.count > MAX_MAPPED_QUEUES:
        raise LimitExceeded("queues in mappings of one registration", ids.count, MAX_MAPPED_QUEUES)


def _in_order(ids: dict[int, int]) -> Sliced[tuple[tuple[int, int], ...]]:
    """The queues by ascending queue of the topic: nearly always they come so."""
    is_in_order = all(map(operator.lt, ids, itertools.islice(ids, 1, None)))
    queues: Iterable[int] = ids if is_in_order else (yield from sorted_in_slices(ids))
    found: list[tuple[int, int]] = []
    for queue in queues:
        if len(found) % PAIRED_SLICE == PAIRED_SLICE - 1:
            yield
        found.append((queue, ids[queue]))
    if len(found) > PAIRED_SLICE:
        yield  # whoever gets them hashes them next
    return tuple(found)
