"""The file with operators' intents, so that a restart does not undo them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from groundwork.files import replace_durably
from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKey, IntentKind, IntentTable
from namesrv.storage.durable_file import BrokenFile, DurableFile, read_model

INTENTS_FILE = "intents.json"
"""Name of the file. RocketMQ has no such file: its operators repeat their intents after every restart."""

_Millis = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Milliseconds since the Unix epoch: what the wire can carry."""


class _Row(BaseModel):
    """One intent. A field that this version does not know could narrow the intent, so it is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")

    kind: str
    caller: str
    since_millis: _Millis
    comment: str
    ends_at_millis: _Millis | None


class _PermissionRow(_Row):
    kind: Literal["WIPE_WRITE_PERM", "ADD_WRITE_PERM"]
    cluster_name: str
    broker_name: str

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.cluster_name, self.broker_name)


class _HoldRow(_Row):
    kind: Literal["TOPIC_HOLD"]
    topic: str
    cluster_name: str | None

    @property
    def key(self) -> HoldKey:
        return HoldKey(self.topic, self.cluster_name)


class _Content(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)]
    """Goes up with every change of the format."""
    intents: list[Annotated[_PermissionRow | _HoldRow, Field(discriminator="kind")]]


class IntentsFile(DurableFile[IntentTable]):
    """``intents.json`` and its copy in a folder. There are no intents if there never was a file."""

    def __init__(self, folder: Path, write: Callable[[Path, bytes], None] = replace_durably) -> None:
        super().__init__(folder / INTENTS_FILE, IntentTable(), _decode, _encode, write)


def _encode(table: IntentTable) -> bytes:
    content = _Content(version=1, intents=[_row(intent) for intent in table.intents.values()])
    return f"{content.model_dump_json(indent=2)}\n".encode()


def _row(intent: Intent) -> _PermissionRow | _HoldRow:
    fields = {
        "kind": intent.kind.name,
        **_key_fields(intent.key),
        "caller": intent.caller,
        "since_millis": intent.since_millis,
        "comment": intent.comment,
        "ends_at_millis": intent.ends_at_millis,
    }
    row = _HoldRow if intent.kind is IntentKind.TOPIC_HOLD else _PermissionRow
    return row.model_validate(fields)


def _decode(content: bytes) -> IntentTable:
    rows = read_model(_Content, content, "intents of version 1").intents
    table = IntentTable.of(_intent(row) for row in rows)
    if len(table.intents) < len(rows):
        raise BrokenFile("holds two intents about the same thing")
    return table


def _intent(row: _PermissionRow | _HoldRow) -> Intent:
    return Intent(IntentKind[row.kind], row.key, row.caller, row.since_millis, row.comment, row.ends_at_millis)


def _key_fields(key: IntentKey) -> dict[str, str | None]:
    if isinstance(key, HoldKey):
        return {"topic": key.topic, "cluster_name": key.cluster_name}
    return {"cluster_name": key.cluster_name, "broker_name": key.broker_name}
