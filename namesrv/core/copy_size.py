"""Bounds on the tables of a read-only copy, whatever its leader sends."""

from __future__ import annotations

from dataclasses import dataclass


class CopyTooLarge(Exception):
    """The leader has more than a copy keeps. The text names the limit and the value."""


MAX_TOPICS = 4_000_000
"""Most topics of a copy, four times those of the largest fleet: each takes 250 bytes."""

MAX_QUEUE_ROWS = 20_000_000
"""Most rows of queues of a copy, each topic of a group and each queue in a mapping counted. 1,000,000 topics on ten
groups each have half as many; a row takes 100 bytes."""

MAX_BROKER_ROWS = 1_000_000
"""Most rows about brokers: groups, members, live brokers and filter servers. 10,000 brokers have 40,000 rows of 600
bytes."""

MAX_OTHER_ROWS = 1_000_000
"""Most intents, keys and held queues of a copy: a name server keeps 5,000 intents and 10,000 keys."""

MAX_KV_BYTES = 64 * 1024 * 1024
"""Most bytes of a copy's KV configuration: a name server keeps 2 MiB."""

MAX_TEXT_LENGTH = 1_024
"""Longest name or address in a row: name servers accept 260 characters. Rows stay in the change log, by number."""

MAX_CAUSE_LENGTH = 2_048
"""Most characters that are kept of each text of a change's cause."""


@dataclass(slots=True)
class CopySize:
    """Rows of a copy by kind."""

    topics: int = 0
    queue_rows: int = 0
    broker_rows: int = 0
    other_rows: int = 0
    kv_bytes: int = 0

    def check(self) -> None:
        """Raises CopyTooLarge if the copy is over a limit."""
        counted = (
            ("topics", self.topics, MAX_TOPICS),
            ("rows of queues", self.queue_rows, MAX_QUEUE_ROWS),
            ("rows about brokers", self.broker_rows, MAX_BROKER_ROWS),
            ("intents, keys and held queues", self.other_rows, MAX_OTHER_ROWS),
            ("bytes of KV configuration", self.kv_bytes, MAX_KV_BYTES),
        )
        for what, value, limit in counted:
            if value > limit:
                raise CopyTooLarge(f"{value:,} {what}, over the limit of {limit:,} of a copy")


def check_texts(*texts: str) -> None:
    """Checks names and addresses of a row. Raises CopyTooLarge if one is too long."""
    for text in texts:
        if len(text) > MAX_TEXT_LENGTH:
            raise CopyTooLarge(f"a name of {len(text):,} characters, over the limit of {MAX_TEXT_LENGTH:,} of a copy")
