"""The files that belong to a broker: the agent reads them again whenever they change, and never writes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
import watchfiles

from broker_agent.timing.clock import Timing
from broker_agent.timing.periodic_thread import Wait
from broker_agent.topics.followed_file import FollowedFile
from broker_agent.topics.mappings_file import (
    TopicQueueMappings,
    decode_mappings,
    log_skipped_mappings,
    mappings_path,
)
from broker_agent.topics.table import OnBadTopic, TopicConfigTable, decode_topics, log_skipped_topics

POLL_SECONDS = 0.25
"""Longest time between two looks at the file: some file systems do not report changes, and a folder that comes back is
not the watched one.
"""
_RETRY_SECONDS = 0.05
_DEBOUNCE_MILLIS, _STEP_MILLIS = 100, 50
"""Changes within this time count as one; it is also the period of the watcher."""
_JOIN_SECONDS = 2.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class FollowedTopics:
    """Looks at topics.json and the mappings of static topics beside it, and hands on each new table of both.

    The last good content stays in force while a file is broken.
    """

    def __init__(self, path: Path, on_bad_topic: OnBadTopic, timing: Timing, wait: Wait = threading.Event.wait) -> None:
        """Touches nothing yet.

        Args:
            path: The topics.json, or a link to it.
            on_bad_topic: What to do with a file that has topics that break a rule.
            timing: Clocks.
            wait: How to wait; tests put virtual time here.
        """
        self._path = path
        self._wait = wait
        self._topics = FollowedFile(path, lambda content: decode_topics(content, on_bad_topic), timing)
        self._mappings = FollowedFile(
            mappings_path(path), lambda content: decode_mappings(content, on_bad_topic), timing, awaited=True
        )
        self._table: TopicConfigTable | None = None
        self._mapped = TopicQueueMappings()
        self._skipped: frozenset[str] = frozenset()
        self._skipped_mappings: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        self._on_table: Callable[[TopicConfigTable], None] = lambda _table: None
        self._thread = threading.Thread(target=self._run, name="broker-agent-topics", daemon=True)

    @property
    def problem(self) -> str | None:
        """The problem that a file has had for some seconds; None if there is none."""
        of_mappings = self._mappings.problem
        return self._topics.problem or (of_mappings and f"{mappings_path(self._path).name}: {of_mappings}")

    def first_table(self, without_file: TopicConfigTable | None = None) -> TopicConfigTable:
        """Reads the table for the start; the copy stands in, with a warning, for a file that stays broken.

        Args:
            without_file: The table if there is neither a file nor a copy; None if that is an error.

        Raises:
            StartError: There is no good file and no good copy.
        """
        pause = partial(self._wait, self._stopping, _RETRY_SECONDS)
        table = self._topics.first(without_file, pause)
        if table is without_file:
            _log.warning("topics_file_awaited", file=str(self._path), topics_until_then=len(table.topics))
        return self._taken(table, self._mappings.first(TopicQueueMappings(), pause))

    def start(self, on_table: Callable[[TopicConfigTable], None]) -> None:
        """Starts to watch; each new table goes to the function, in the watching thread."""
        self._on_table = on_table
        self._thread.start()

    def stop(self) -> None:
        """Ends watching and waits for that, for two seconds at most."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def look(self) -> TopicConfigTable | None:
        """Looks at both files once.

        Returns:
            The table with its mappings, if it is another one than at the last good look.
        """
        table, mapped = self._topics.look(), self._mappings.look()
        if table is None and mapped is None:
            return None
        self._table, self._mapped = table or self._table, mapped or self._mapped
        return None if self._table is None else self._taken(self._table, self._mapped)

    def _taken(self, table: TopicConfigTable, mapped: TopicQueueMappings) -> TopicConfigTable:
        self._table, self._mapped = table, mapped
        skipped = frozenset(table.unknown.skipped_topics or ())
        if skipped != self._skipped:
            self._skipped = skipped
            log_skipped_topics(self._path, table)
        if mapped.skipped != self._skipped_mappings:
            self._skipped_mappings = mapped.skipped
            log_skipped_mappings(mappings_path(self._path), mapped)
        return mapped.put_into(table)

    def _run(self) -> None:
        last_reason = ""
        while not self._stopping.is_set():
            try:
                self._watch()
            except (OSError, RuntimeError) as error:  # a missing folder, or no more watches to be had: looks go on
                if str(error) != last_reason:
                    _log.debug("topics_file_not_watched", file=str(self._path), reason=str(error))
                last_reason = str(error)
                self._look_and_tell()
                self._wait(self._stopping, POLL_SECONDS)

    def _watch(self) -> None:
        """Looks at each event and at least every quarter of a second, until another folder is in the folder's place."""
        folder = self._path.parent
        watched = folder.stat()
        for _changes in watchfiles.watch(
            folder,
            watch_filter=None,  # links on the way to the file may change, too, as those of a mounted configuration do
            debounce=_DEBOUNCE_MILLIS,
            step=_STEP_MILLIS,
            stop_event=self._stopping,
            rust_timeout=int(POLL_SECONDS * 1000),
            yield_on_timeout=True,
            raise_interrupt=False,
            recursive=False,
        ):
            self._look_and_tell()
            now = folder.stat()
            if (now.st_dev, now.st_ino) != (watched.st_dev, watched.st_ino):
                return

    def _look_and_tell(self) -> None:
        try:
            table = self.look()
            if table is not None:
                self._on_table(table)
        except Exception:  # noqa: BLE001 - the boundary of a thread: nobody else would ever see the error
            _log.exception("topics_file_look_failed", file=str(self._path))
