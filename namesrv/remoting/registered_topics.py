"""The topics of a registration's body: each is checked and taken, or passed over."""

from __future__ import annotations

import re
from collections.abc import Container, Sized
from dataclasses import dataclass, field
from typing import Any

from groundwork.topic_rules import MAX_MAPPED_QUEUES, MAX_PERM, MAX_QUEUE_NUMS, check_topic
from namesrv.config import limits
from namesrv.core.errors import LimitExceeded
from namesrv.core.model import DataVersion, QueueNumbers, StaticMapping, TableMark
from namesrv.core.slices import Sliced
from namesrv.remoting.static_mapping import mapping_of, take_mapping
from namesrv.remoting.wire.json_reader import ObjectReader

READ_SLICE = 250
"""Topics that are read before giving way: about a millisecond."""

PLAIN_SLICE = 500
"""The same of topics in the form in which RocketMQ writes them: about half a millisecond."""

SKIPPED_NAMED = 3
"""Topics that are passed over and named in the log; the others are counted."""

_HIGHEST_INT = 2**31 - 1
_COMPRESSED_FIELDS = 5
"""Name, read queues, write queues, permission, filter type; attributes may follow."""

_TEXT = r'"[^"\\]*"'
_NUMBER = r"(0|[1-9]\d{0,8})"
_PLAIN = re.compile(
    rf',"([^"\\]+)":\{{(?:"attributes":\{{(?:{_TEXT}:{_TEXT}(?:,{_TEXT}:{_TEXT})*)?\}},)?"order":(?:false|true),'
    rf'"perm":{_NUMBER},"readQueueNums":{_NUMBER},"topicFilterType":{_TEXT},"topicName":"\1",'
    rf'"topicSysFlag":{_NUMBER},"writeQueueNums":{_NUMBER}\}}'
)
"""A topic behind another one, as RocketMQ writes it: found by this in a quarter of the time of a JSON parser. Whatever
is written otherwise is read by one."""


@dataclass(slots=True)
class RegistrationBody:
    """The body of a registration: what of it this name server keeps."""

    data_version: DataVersion = field(default_factory=lambda: DataVersion(0, 0))
    topic_configs: dict[str, QueueNumbers] | None = field(default_factory=dict)
    """None: not read, as the table is the one of the mark that is held."""
    filter_servers: tuple[str, ...] = ()
    mappings: dict[str, StaticMapping] = field(default_factory=dict)
    """Static topics' mappings by topic."""
    mapped_queues: int = 0
    """Queues in these mappings."""
    table_mark: TableMark | None = None
    """Of the topic table, if a mark can tell all that comes of it."""
    skipped: int = 0
    """Topics that break a rule."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with the first of them."""


class RegisteredTopics:
    """Takes topics, one by one, into a body."""

    def __init__(self, body: RegistrationBody, known_topics: Container[str]) -> None:
        """Begins without topics.

        Args:
            body: Gets them.
            known_topics: Names that have been checked before.
        """
        self.body = body
        self.configs: dict[str, QueueNumbers] = {}
        self._known = known_topics
        self._shared: dict[QueueNumbers, QueueNumbers] = {}
        self._of_texts: dict[tuple[str, ...], QueueNumbers] = {}
        """Numbers that are sound, by the texts that they were written as."""

    def add(self, key: str, value: object) -> None:
        """Adds a TopicConfig, or counts it as passed over."""
        if not isinstance(value, dict):
            return self._skip(key, "is no object")
        numbers = (
            value.get("readQueueNums", 0),
            value.get("writeQueueNums", 0),
            value.get("perm", 0),
            value.get("topicSysFlag", 0),
        )
        topic = value.get("topicName") or key
        return self._add(topic if isinstance(topic, str) else key, numbers)

    def add_plain(self, reader: ObjectReader) -> Sliced[None]:
        """Adds all topics that follow in the form in which RocketMQ writes them, up to one in another form."""
        # This loop is the cost of a registration, so it makes no call that it can do without.
        text, at, configs, known, sound = reader.text, reader.at, self.configs, self._known, self._of_texts
        match, left = _PLAIN.match, PLAIN_SLICE
        while (found := match(text, at)) is not None:
            at = found.end()
            topic, numbers = found[1], sound.get(found.group(2, 3, 4, 5))
            if numbers is not None and topic in known:
                configs[topic] = numbers
            else:
                self._add_found(topic, found.group(2, 3, 4, 5))
            if len(configs) > limits.MAX_TOPICS_PER_REGISTRATION:
                raise _too_many(configs)
            left -= 1
            if not left:
                left = PLAIN_SLICE
                yield
        reader.at = at

    def add_text(self, text: str) -> None:
        """Adds a TopicConfig in the form of compressed bodies: parts between blanks."""
        parts = text.split(" ", _COMPRESSED_FIELDS)
        try:
            read, write, perm = (int(part) for part in parts[1:4])
        except ValueError:
            return self._skip(parts[0], "has other numbers than read queues, write queues and permission")
        return self._add(parts[0], (read, write, perm, 0))

    def add_mapping(self, key: str, reader: ObjectReader) -> Sliced[None]:
        """Takes a TopicQueueMappingInfo and adds it, or counts its topic as passed over."""
        value = yield from take_mapping(reader)
        topic = value.get("topic") or key if isinstance(value, dict) else key
        if not isinstance(topic, str):
            return self._skip(key, "has a mapping whose topic is no text")
        try:
            mapping = yield from mapping_of(value)
            if topic not in self._known and topic not in self.configs:
                check_topic(topic)
        except ValueError as error:
            return self._skip(str(topic), str(error))
        self.body.mappings[topic] = mapping
        self.body.mapped_queues += len(mapping.queue_ids)
        if self.body.mapped_queues > MAX_MAPPED_QUEUES:
            raise LimitExceeded("queues in mappings of one registration", self.body.mapped_queues, MAX_MAPPED_QUEUES)
        return None

    def _add_found(self, topic: str, texts: tuple[str, ...]) -> None:
        perm, read, flag, write = map(int, texts)
        self._add(topic, (read, write, perm, flag))
        sound = self._shared.get((read, write, perm, flag))
        if sound is not None:
            self._of_texts[texts] = sound

    def _add(self, topic: str, numbers: tuple[Any, Any, Any, Any]) -> None:
        checked = self._shared.get(numbers) if _are_numbers(numbers) else None
        if checked is None:
            problem = _problem_of(numbers)
            if problem is not None:
                return self._skip(topic, problem)
            self._shared[numbers] = checked = numbers
        if topic not in self._known:
            try:
                check_topic(topic)
            except ValueError as error:
                return self._skip(topic, str(error))
        configs = self.configs
        configs[topic] = checked
        if len(configs) > limits.MAX_TOPICS_PER_REGISTRATION:
            raise _too_many(configs)
        return None

    def _skip(self, topic: str, problem: str) -> None:
        self.body.skipped += 1
        if len(self.body.problems) < SKIPPED_NAMED:
            self.body.problems.append(f"{topic[:40]!r} {problem}")


def _are_numbers(numbers: tuple[object, object, object, object]) -> bool:
    first, second, third, fourth = numbers  # of each topic of a large table, so without a loop
    return type(first) is type(second) is type(third) is type(fourth) is int


def _problem_of(numbers: tuple[Any, Any, Any, Any]) -> str | None:
    names = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")
    for name, number, highest in zip(
        names, numbers, (MAX_QUEUE_NUMS, MAX_QUEUE_NUMS, MAX_PERM, _HIGHEST_INT), strict=True
    ):
        if type(number) is not int or not 0 <= number <= highest:
            return f"has a {name} that is no number from 0 to {highest}"
    return None


def _too_many(configs: Sized) -> LimitExceeded:
    return LimitExceeded("topics of one registration", len(configs), limits.MAX_TOPICS_PER_REGISTRATION)
