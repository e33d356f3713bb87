"""The history of a run, which is all that its checks get: JSON lines with the second of the run, and what happened."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

Record = dict[str, Any]
"""``at`` is a second of the run, ``what`` the kind of record. The callers that add it know its other fields."""


class History:
    """Collects records from any thread, in memory and in a file, in the order of their times."""

    def __init__(self, path: Path) -> None:
        self.records: list[Record] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")

    def now(self) -> float:
        """Seconds since the run began."""
        return round(time.monotonic() - self._began, 4)

    def add(self, what: str, **fields: Any) -> None:
        """Adds a record, as of now."""
        with self._lock:
            record = {"at": self.now(), "what": what, **fields}
            if not self._file.closed:  # a thread that ends late has nothing to add to a run that is over
                self.records.append(record)
                self._file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Takes no more."""
        with self._lock:
            self._file.close()


def of_kind(records: list[Record], what: str) -> Iterator[Record]:
    """The records of one kind."""
    return (record for record in records if record["what"] == what)


def as_json(message: Message) -> dict[str, Any]:
    """A message as a history keeps it."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)
