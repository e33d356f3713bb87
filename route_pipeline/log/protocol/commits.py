"""Commits: the objects that say what a log holds. Each is made once, under the next number, and never changed.

docs/pipeline.md describes the format for other programs. An object is two lines of JSON: a header, with the checksum of
the second line, and the body. A program passes over fields that it does not know, and applies what it does know of a
commit of an unknown kind; what it could not read rightly has a higher version, which it refuses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from route_pipeline.log.protocol.summaries import Summary
from route_pipeline.stores.store import StoreError

FORMAT = "namesrv-route-log"
VERSION = 3
"""Version of the format. A change that an older program would misread raises it."""

CHANGES, QUARANTINE = "changes", "quarantine"
"""Tables whose files a log has: its rows, and those that break the contract."""

BATCH, COMPACTION, RETENTION, CLEANING = "batch", "compaction", "retention", "cleaning"
KINDS = (BATCH, COMPACTION, RETENTION, CLEANING)
"""Why a commit was made."""

_Record = TypeVar("_Record")


class LogError(StoreError):
    """The log is not whole, or not one that this program can read; the text is one line."""


@dataclass(frozen=True, slots=True)
class Span:
    """The revisions of one life of a name server that a file has rows of."""

    namesrv: str
    epoch: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a log."""

    path: str
    """Below the log's root."""
    table: str
    """Which table its rows are of."""
    date: str
    """Day on which its rows were written to the log, UTC, such as 2026-11-22."""
    rows: int
    size: int
    """Bytes."""
    made_by: str
    """Kind of the commit that added it."""
    spans: tuple[Span, ...] = ()
    """What it covers; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who made a commit."""

    id: str
    """Random, one for each process that writes."""
    epoch: int
    """Rises with each writer of batches; a batch of a lower one than the last is not accepted."""
    host: str
    program: str
    """Name and version."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of a log."""

    number: int
    """1 for the first; no number is left out."""
    log: str
    """Id of the log."""
    kind: str
    at: datetime
    """When it was made, by the store's clock, UTC."""
    writer: Writer
    add: tuple[DataFile, ...] = ()
    """Files that are of the log from here on."""
    remove: tuple[str, ...] = ()
    """Files that are no longer; they stay in the store for a while, for readers that go on."""
    forget: tuple[str, ...] = ()
    """Files removed earlier that have left the store."""
    run: str = ""
    """Of a batch: the run, which began with a snapshot."""
    batch: int = 0
    """Of a batch: its number within the run."""
    position: Mapping[str, Any] | None = None
    """Of a batch: how far the name servers have been read. None: the position stays."""
    summaries: tuple[Summary, ...] = field(default=())
    """Of a batch: what it brought of each name server."""


def encode(number: int, body: Mapping[str, Any]) -> bytes:
    """An object of the log: a header and a body."""
    text = json.dumps(body, separators=(",", ":")).encode()
    header = {"format": FORMAT, "version": VERSION, "number": number, "sha256": hashlib.sha256(text).hexdigest()}
    return json.dumps(header).encode() + b"\n" + text + b"\n"


def decode(name: str, number: int, content: bytes) -> dict[str, Any]:
    """The body of an object.

    Args:
        name: What to call it in an error.

    Raises:
        LogError: It is cut or changed, or of a version that this program does not know.
    """
    first, _, rest = content.partition(b"\n")
    try:
        header = json.loads(first)
        version, text = header["version"], rest.removesuffix(b"\n")
        if header["format"] != FORMAT or type(version) is not int:
            raise LogError(f"{name} is no object of a route log")
        if version > VERSION:
            raise LogError(f"{name} has version {version} of the format; this program knows {VERSION}: use a newer one")
        if header["number"] != number or header["sha256"] != hashlib.sha256(text).hexdigest():
            raise LogError(f"{name} was cut or changed after it was written: its checksum is another one")
        body: dict[str, Any] = json.loads(text)
    except (ValueError, KeyError, TypeError):
        raise LogError(f"{name} was cut or changed after it was written: it cannot be read") from None
    return body


def to_json(commit: Commit) -> dict[str, Any]:
    """The body of a commit. What is empty is left out."""
    body = {
        "log": commit.log,
        "kind": commit.kind,
        "at": commit.at.isoformat(),
        "writer": asdict(commit.writer),
        "add": [file_to_json(file) for file in commit.add],
        "remove": list(commit.remove),
        "forget": list(commit.forget),
        "run": commit.run,
        "batch": commit.batch,
        "position": commit.position,
        "summaries": [summary_to_json(summary) for summary in commit.summaries],
    }
    return {name: value for name, value in body.items() if value or name == "batch"}


def from_json(name: str, number: int, body: Mapping[str, Any]) -> Commit:
    """A commit from its body. Raises LogError if a field is missing or of another type."""
    try:
        return Commit(
            number=number,
            log=str(body["log"]),
            kind=str(body["kind"]),
            at=datetime.fromisoformat(body["at"]),
            writer=_known(Writer, body["writer"]),
            add=tuple(file_from_json(file) for file in body.get("add", ())),
            remove=tuple(map(str, body.get("remove", ()))),
            forget=tuple(map(str, body.get("forget", ()))),
            run=str(body.get("run", "")),
            batch=int(body.get("batch", 0)),
            position=body.get("position"),
            summaries=tuple(summary_from_json(summary) for summary in body.get("summaries", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LogError(f"{name} has a field that is missing or wrong: {error}") from None


def file_to_json(file: DataFile) -> dict[str, Any]:
    entry = {name: getattr(file, name) for name in ("path", "table", "date", "rows", "size", "made_by")}
    return entry | {"spans": [[span.namesrv, span.epoch, span.first, span.last] for span in file.spans]}


def file_from_json(entry: Mapping[str, Any]) -> DataFile:
    """A file from its entry. Raises KeyError, TypeError, ValueError."""
    return DataFile(
        path=str(entry["path"]),
        table=str(entry["table"]),
        date=str(entry["date"]),
        rows=int(entry["rows"]),
        size=int(entry["size"]),
        made_by=str(entry["made_by"]),
        spans=tuple(Span(str(name), str(epoch), int(first), int(last)) for name, epoch, first, last in entry["spans"]),
    )


def was_cut(name: str, size: int, written: int) -> str:
    """What to say of a data file that has another size than it was written with."""
    return f"{name} was cut or changed after it was written: it has {size:,} bytes of {written:,}"


def summary_to_json(summary: Summary) -> dict[str, Any]:
    return asdict(summary) | {"ingested_at": summary.ingested_at.isoformat()}


def summary_from_json(entry: Mapping[str, Any]) -> Summary:
    """A summary from its entry. Raises KeyError, TypeError, ValueError."""
    return _known(Summary, dict(entry) | {"ingested_at": datetime.fromisoformat(entry["ingested_at"])})


def _known(record: type[_Record], entry: Mapping[str, Any]) -> _Record:
    """A record of those fields that this program knows."""
    return record(**{name: entry[name] for name in record.__dataclass_fields__})  # type: ignore[attr-defined]
