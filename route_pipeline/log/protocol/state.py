"""What a log holds after one of its commits: all that readers and writers need, and what a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import itemgetter
from typing import Any

from route_pipeline.log.protocol import commits
from route_pipeline.log.protocol.commits import Commit, DataFile, LogError, Span
from route_pipeline.log.protocol.summaries import Summary
from route_pipeline.source.change_rows import BACK, HOLE, LOST, SNAPSHOT


@dataclass
class LogState:
    """What the commits up to one of them add up to."""

    number: int = 0
    """Of the last commit; 0: there is none."""
    files: dict[str, DataFile] = field(default_factory=dict)
    """The files of the log, by path."""
    removed: dict[str, datetime] = field(default_factory=dict)
    """Files that were removed and are still in the store, with when."""
    epoch: int = 0
    """The highest of a writer."""
    writer: str = ""
    """Id of the writer of the last batch."""
    host: str = ""
    """Where that writer ran."""
    run: str = ""
    """The run of the last batch."""
    batch: int = -1
    """The number of the last batch; -1: there is none."""
    position: Mapping[str, Any] | None = None
    """How far the name servers have been read; None: not at all."""
    known: dict[str, Summary] = field(default_factory=dict)
    """The last summary of each name server."""
    lost: set[str] = field(default_factory=set)
    """Name servers that did not answer when they were last asked."""
    unknown_kinds: set[str] = field(default_factory=set)
    """Kinds of commits that this program does not know; what it knows of them is applied."""
    checkpoint: int = 0
    """Number of the newest checkpoint that is known."""

    def apply(self, commit: Commit) -> None:
        """Takes the next commit in.

        Raises:
            LogError: It cannot follow on what is known.
        """
        if commit.number != self.number + 1:
            raise LogError(f"commit {commit.number} does not follow on commit {self.number}")
        if commit.position is not None and commit.writer.epoch < self.epoch:
            raise LogError(
                f"commit {commit.number} is of a writer that had been replaced (epoch {commit.writer.epoch})"
            )
        self._apply_files(commit)
        if commit.position is not None:
            self.epoch, self.writer, self.host = commit.writer.epoch, commit.writer.id, commit.writer.host
            self.run, self.batch, self.position = commit.run, commit.batch, commit.position
        for summary in commit.summaries:
            self._learn(summary)
        if commit.kind not in commits.KINDS:
            self.unknown_kinds.add(commit.kind)
        self.number = commit.number

    def files_of(self, table: str) -> list[DataFile]:
        """The files of a table, by day."""
        return sorted((file for file in self.files.values() if file.table == table), key=lambda file: file.date)

    def _apply_files(self, commit: Commit) -> None:
        for path in commit.remove:
            if self.files.pop(path, None) is None:
                raise LogError(f"commit {commit.number} removes {path}, which is not there")
            self.removed[path] = commit.at
        for file in commit.add:
            if file.path in self.files:
                raise LogError(f"commit {commit.number} adds {file.path} again")
            self.files[file.path] = file
        for path in commit.forget:
            self.removed.pop(path, None)

    def _learn(self, summary: Summary) -> None:
        """Takes a summary in. Of the losses and returns of a name server, the last counts."""
        self.known[summary.namesrv] = summary
        ops = summary.read.split(",")
        if LOST in ops or HOLE in ops:
            self.lost.add(summary.namesrv)
        elif BACK in ops or SNAPSHOT in ops:
            self.lost.discard(summary.namesrv)


_FILE_FIELDS = [one.name for one in fields(DataFile)]
"""A checkpoint has hundreds of thousands of files: their fields are named once."""


def to_json(log: str, state: LogState) -> dict[str, Any]:
    """The body of a checkpoint."""
    return {
        "log": log,
        "file_fields": _FILE_FIELDS,
        "files": [_entry(file) for file in state.files.values()],
        "removed": {path: at.isoformat() for path, at in state.removed.items()},
        "epoch": state.epoch,
        "writer": state.writer,
        "host": state.host,
        "run": state.run,
        "batch": state.batch,
        "position": state.position,
        "known": [commits.summary_to_json(summary) for summary in state.known.values()],
        "lost": sorted(state.lost),
        "unknown_kinds": sorted(state.unknown_kinds),
    }


def from_json(name: str, number: int, body: Mapping[str, Any]) -> LogState:
    """A state from the body of a checkpoint.

    Raises:
        LogError: A field is missing or of another type.
    """
    try:
        return LogState(
            number=number,
            files=_files(body),
            removed={path: datetime.fromisoformat(at) for path, at in body["removed"].items()},
            epoch=int(body["epoch"]),
            writer=str(body["writer"]),
            host=str(body["host"]),
            run=str(body["run"]),
            batch=int(body["batch"]),
            position=body["position"],
            known={entry["namesrv"]: commits.summary_from_json(entry) for entry in body["known"]},
            lost=set(body["lost"]),
            unknown_kinds=set(body["unknown_kinds"]),
            checkpoint=number,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LogError(f"{name} has a field that is missing or wrong: {error}") from None


def _files(body: Mapping[str, Any]) -> dict[str, DataFile]:
    """The files of a checkpoint. Its fields may be more than this program knows, and in another order."""
    names = body["file_fields"]
    pick = itemgetter(*(names.index(name) for name in _FILE_FIELDS))
    files = {}
    for entry in body["files"]:
        path, table, date, rows, size, made_by, spans = pick(entry)
        files[path] = DataFile(path, table, date, rows, size, made_by, tuple(Span(*span) for span in spans))
    return files


def _entry(file: DataFile) -> list[Any]:
    spans = [[span.namesrv, span.epoch, span.first, span.last] for span in file.spans]
    return [file.path, file.table, file.date, file.rows, file.size, file.made_by, spans]
