"""The manager of the broker's topic table, with a listener for its changes (RocketMQ: TopicConfigManager)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import structlog

from broker_agent.errors import Reason, topic_not_found, topics_followed
from broker_agent.timing import PeriodicThread, Timing
from broker_agent.topics.files import FollowedTopics, TopicsFile
from broker_agent.topics.table import MAX_TOPICS, DataVersion, TopicConfig, TopicConfigTable
from namesrv_common.errors import Refused, limit_exceeded
from namesrv_common.topic_names import is_system_name

LOOK_SECONDS = 0.1
"""Time between two looks at a followed file: below the time for which changes are gathered before registration."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicConfigChange:
    """A topic before and after a change that was made, or would be."""

    before: TopicConfig | None
    """None if there was no such topic."""
    after: TopicConfig | None
    """None if it was deleted."""
    data_version: DataVersion
    """Version of the table after it."""


class TopicConfigManager:
    """The table in force. It is on disk first and in memory afterwards; readers need no lock."""

    def __init__(
        self,
        table: TopicConfigTable,
        timing: Timing,
        *,
        file: TopicsFile | None = None,
        followed: FollowedTopics | None = None,
        built_in: Collection[TopicConfig] = (),
    ) -> None:
        """The agent owns the file and writes each change; or the file is the broker's, and the agent never writes.

        Args:
            table: The first table, of either file.
            file: Makes changes durable; None if there are none.
            followed: Watches the broker's own file, or None.
            built_in: The broker's own topics, which no call changes.
        """
        self.table = table
        """The table in force; never changed, only replaced."""
        self._timing = timing
        self._file = file
        self.follows = file is None
        """Whether the file is the broker's, so that nothing can be changed here."""
        self._followed = followed
        self._watch = PeriodicThread("broker-agent-topics", self._look, timing)
        self._built_in = frozenset(topic.topic_name for topic in built_in)
        self._version_read = table.data_version
        self._state_version = 0
        self.on_change: Callable[[TopicConfigTable], None] = lambda _table: None
        """Called with each new table, in order, in the thread that made it. Must return quickly, change no topics."""
        self._changing = threading.Lock()
        """Held by one change at a time, from the version before it to the file after it. A disk that hangs delays other
        changes only: readers and registrations take ``table`` without it."""

    @property
    def problem(self) -> str | None:
        """The problem of a followed file, or of the first topic that is left out; None if there is none."""
        return (self._followed.problem if self._followed else None) or self.table.unknown.problem

    def start(self) -> None:
        """Starts to watch the file, if it is followed."""
        if self._followed:
            self._watch.start()

    def stop(self) -> None:
        """Ends watching, and waits for that for a few seconds at most."""
        self._watch.stop()

    def edit(
        self, name: str, make: Callable[[TopicConfig | None], TopicConfig], *, validate_only: bool = False
    ) -> TopicConfigChange:
        """Makes a topic or changes one; if nothing is different, nothing happens (RocketMQ 5).

        Args:
            make: Makes the topic of what it was before, or of None; may raise Refused.
            validate_only: Only say what would be.

        Raises:
            Refused: It is not allowed, or could not be made durable. Nothing has changed.
        """
        with self._changing:
            self._check_changeable(name)
            before = self.table.get(name)
            if before is None and len(self.table.topics) >= MAX_TOPICS:
                raise limit_exceeded("topics of the broker", len(self.table.topics) + 1, MAX_TOPICS)
            topic = replace(make(before), unknown=before.unknown if before else None)
            table = self.table
            if topic != before:
                table = self.table.with_topics((topic,), self._next_version())
                if not validate_only:
                    self._save_and_publish(table)
            return TopicConfigChange(before, topic, table.data_version)

    def delete(self, name: str, *, validate_only: bool = False) -> TopicConfigChange:
        """Deletes a topic. Raises Refused, also if it could not be made durable."""
        with self._changing:
            self._check_changeable(name)
            before = self.table.get(name)
            if before is None:
                raise topic_not_found(name)
            table = self.table.without(name, self._next_version())
            if not validate_only:
                self._save_and_publish(table)
            return TopicConfigChange(before, None, table.data_version)

    def update_order_topics(self, names: Collection[str]) -> None:
        """Marks the topics of an order topic configuration as ordered (RocketMQ 5: updateOrderTopicConfig).

        Topics that are not known are passed over. Does nothing if the file is followed: the broker does it then.

        Raises:
            Refused: It could not be made durable.
        """
        if self._file is None:
            return
        with self._changing:
            unordered = [topic for name in names if (topic := self.table.get(name)) and not topic.order]
            if unordered:
                ordered = [replace(topic, order=True) for topic in unordered]
                self._save_and_publish(self.table.with_topics(ordered, self._next_version()))

    def next_state_version(self) -> DataVersion:
        """Takes a version with a higher state version, as a change of the broker's role does.

        Where the file is followed, the higher state version is in memory only, and replaces the file's.

        Raises:
            Refused: It could not be made durable.
        """
        with self._changing:
            old = self.table.data_version
            version = old.next(self._timing.wall_millis(), (old.state_version or 0) + 1)
            self._state_version = version.state_version or 0
            self._save_and_publish(replace(self.table, data_version=version))
            return version

    def copy(self, topics: tuple[TopicConfig, ...], version: DataVersion) -> None:
        """Takes a master's topics and their version instead of the slave's own (RocketMQ: SlaveSynchronize).

        Raises:
            Refused: The file is followed, or it could not be made durable.
        """
        with self._changing:
            if self._file is None:
                raise topics_followed()
            table = replace(self.table, data_version=version, topics=topics)
            if table != self.table:
                self._save_and_publish(table)

    def _look(self) -> float:
        """Takes what the broker has written, if that has changed. Returns the seconds to the next look."""
        if self._followed and (read := self._followed.look()) is not None:
            self._follow(read)
        return LOOK_SECONDS

    def _follow(self, read: TopicConfigTable) -> None:
        with self._changing:
            before = self.table
            version = read.data_version
            if version == self._version_read:
                version = before.data_version
                if read.topics != before.topics:
                    # Edited by hand: name servers that know the version would never ask for the new topics.
                    later = max(self._timing.wall_millis(), version.timestamp_millis + 1)
                    version = replace(version, timestamp_millis=later)
            elif self._state_version > (version.state_version or 0):
                version = replace(version, state_version=self._state_version)
            self._version_read = read.data_version
            table = replace(read, data_version=version)
            if table != before:
                self._publish(table)

    def _next_version(self) -> DataVersion:
        return self.table.data_version.next(self._timing.wall_millis())

    def _check_changeable(self, name: str) -> None:
        if self._file is None:
            raise topics_followed()
        if name in self._built_in or is_system_name(name):
            text = f"topic {name!r} is a system topic: it is not changed or deleted by call"
            raise Refused(Reason.SYSTEM_TOPIC, text, topic=name)

    def _save_and_publish(self, table: TopicConfigTable) -> None:
        if self._file is not None:
            self._file.save(table)
        self._publish(table)

    def _publish(self, table: TopicConfigTable) -> None:
        self.table = table
        version = table.data_version
        _log.info("topics_changed", topics=len(table.topics), counter=version.counter, state=version.state_version)
        try:
            self.on_change(table)
        except Exception:  # noqa: BLE001 - the change is made, and its caller must not take it for refused
            _log.exception("topics_listener_failed")
