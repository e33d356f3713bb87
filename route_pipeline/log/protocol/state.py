"""What a log holds after one of its commits: all that readers and writers need, and what a checkpoint keeps.

A checkpoint is two objects: this state without the files, which is small however long the log, and the files
(:mod:`route_pipeline.log.protocol.file_list`), which a writer of batches does not need to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from route_pipeline.change_rows import BACK, HOLE, LOST, SNAPSHOT
from route_pipeline.log.protocol import commits
from route_pipeline.log.protocol.commits import Commit, DataFile, LogError
from route_pipeline.log.protocol.file_list import FileList
from route_pipeline.log.protocol.summaries import Summary


@dataclass
class LogState:
    """What the commits up to one of them add up to."""

    number: int = 0
    """Of the last commit; 0: there is none."""
    file_list: FileList = field(default_factory=FileList, compare=False)
    """The files of the log, read when they are asked for."""
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

    @property
    def files(self) -> dict[str, DataFile]:
        """The files of the log, by path. Raises StoreError if they cannot be read, or a commit does not follow."""
        return self.file_list.there

    @property
    def removed(self) -> dict[str, datetime]:
        """Files that were removed and are still in the store, with when. Raises StoreError, too."""
        return self.file_list.removed

    def apply(self, commit: Commit) -> None:
        """Takes the next commit in. Raises LogError if it cannot follow on what is known."""
        if commit.number != self.number + 1:
            raise LogError(f"commit {commit.number} does not follow on commit {self.number}")
        if commit.position is not None and commit.writer.epoch < self.epoch:
            raise LogError(
                f"commit {commit.number} is of a writer that had been replaced (epoch {commit.writer.epoch})"
            )
        self.file_list.apply(commit)
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

    def _learn(self, summary: Summary) -> None:
        """Takes a summary in. Of the losses and returns of a name server, the last counts."""
        self.known[summary.namesrv] = summary
        ops = summary.read.split(",")
        if LOST in ops or HOLE in ops:
            self.lost.add(summary.namesrv)
        elif BACK in ops or SNAPSHOT in ops:
            self.lost.discard(summary.namesrv)


def to_json(log: str, state: LogState, files_sha256: str) -> dict[str, Any]:
    """The body of a checkpoint whose files are an object with this checksum."""
    return {
        "log": log,
        "files_sha256": files_sha256,
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


def from_json(name: str, number: int, body: Mapping[str, Any], file_list: FileList) -> LogState:
    """A state from the body of a checkpoint, and its files. Raises LogError if the body is damaged."""
    try:
        return LogState(
            number=number,
            file_list=file_list,
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
