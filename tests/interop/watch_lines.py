"""The lines that the watch programs of all languages print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.interop.programs import RunningProgram


@dataclass(frozen=True)
class Bookmark:
    """The changes since the bookmark before it, and the point to resume from."""

    changes: dict[str, dict[str, Any]]
    """By topic."""
    epoch: str
    revision: str

    @classmethod
    def next_of(cls, program: RunningProgram) -> Bookmark:
        """Reads a watch program's lines up to its next bookmark; checks that revisions never fall."""
        changes: dict[str, dict[str, Any]] = {}
        revision = 0
        while True:
            line = program.next_line()
            assert int(line["revision"]) >= revision, line
            revision = int(line["revision"])
            if "bookmark" in line:
                assert line == {"revision": str(revision), "epoch": line["epoch"], "bookmark": True}
                return cls(changes, line["epoch"], str(revision))
            assert line.keys() == {"revision", "change"}
            changes[line["change"]["topic"]] = line["change"]

    @property
    def point(self) -> str:
        """As --after takes it."""
        return f"{self.epoch}/{self.revision}"
