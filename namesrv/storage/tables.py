"""The durable tables: what each row of the database means. A new durable thing is one more ``DurableTable`` here.

A row is a key and a value, both texts. Keys of several parts and values with fields are JSON.
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKind, IntentTable, KvConfigTable
from namesrv.storage.data_dir import DataDirError
from namesrv_common.files.regular_files import read_at_most

MAX_KV_CONFIG_FILE_BYTES = 64 * 1024 * 1024
"""Largest kvConfig.json that is imported: far above what a name server takes over the wire."""

_KEY_SHOWN = 100
"""Characters of a key that an error shows."""

ContentT = TypeVar("ContentT")


class BrokenRows(Exception):
    """Rows do not hold what they should. The text says which and why."""


class DurableTable(NamedTuple, Generic[ContentT]):
    """A table: its name in the database, and what its rows are."""

    name: str
    encode: Callable[[ContentT], Mapping[str, str]]
    """Makes rows, value by key."""
    decode: Callable[[Mapping[str, str]], ContentT]
    """Makes the content; raises BrokenRows. No rows are an empty content."""


# The KV configuration, and RocketMQ's file of it.


def _kv_rows(table: KvConfigTable) -> dict[str, str]:
    return {
        json.dumps([namespace, key]): value
        for namespace, entries in table.namespaces.items()
        for key, value in entries.items()
    }


def _kv_content(rows: Mapping[str, str]) -> KvConfigTable:
    namespaces: dict[str, dict[str, str]] = {}
    for text, value in rows.items():
        match _parts(text):
            case [namespace, key]:
                namespaces.setdefault(namespace, {})[key] = value
            case _:
                raise BrokenRows(f"the key {text[:_KEY_SHOWN]!r} does not have two parts")
    return KvConfigTable.of(namespaces)


_PARTS = TypeAdapter(list[str], config=ConfigDict(strict=True))


def _parts(key: str) -> list[str]:
    """The parts of a key. Raises BrokenRows."""
    try:
        return _PARTS.validate_json(key)
    except ValidationError as error:
        problem = "JSON" if _is_no_json(error) else "a list of texts"
        raise BrokenRows(f"the key {key[:_KEY_SHOWN]!r} is not {problem}") from error


def _is_no_json(error: ValidationError) -> bool:
    return error.errors()[0]["type"] == "json_invalid"


KV_CONFIG = DurableTable("kv_config", _kv_rows, _kv_content)


class _RocketMQFile(BaseModel):
    model_config = ConfigDict(strict=True)

    configTable: dict[str, dict[str, str]]  # noqa: N815 - RocketMQ's name


def read_rocketmq_kv_config(file: Path) -> KvConfigTable | None:
    """The KV configuration in RocketMQ's format (KVConfigSerializeWrapper); None if there is no such file.

    Raises:
        DataDirError: It cannot be read, or is something else.
    """
    try:
        content = read_at_most(file, MAX_KV_CONFIG_FILE_BYTES).removeprefix(codecs.BOM_UTF8)
        return KvConfigTable.of(_RocketMQFile.model_validate_json(content).configTable)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataDirError.of(file, error) from error
    except ValidationError as error:
        problem = "is not JSON in UTF-8" if _is_no_json(error) else "does not hold a configTable of texts"
        raise DataDirError(f"{file} {problem}; correct it, or move it away") from error


# The settings that operators changed over the wire, as texts.

SETTINGS: DurableTable[Mapping[str, str]] = DurableTable("settings", dict, dict)


# Operators' intents.

_Millis = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Milliseconds since the Unix epoch: what the wire can carry."""


class _IntentValue(BaseModel):
    """The value of a row. A field that this version does not know could narrow what it means, so it is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")

    kind: Literal["WIPE_WRITE_PERM", "ADD_WRITE_PERM", "TOPIC_HOLD"]
    caller: str
    since_millis: _Millis
    comment: str
    ends_at_millis: _Millis | None


def _intent_rows(table: IntentTable) -> dict[str, str]:
    return {_intent_key(intent): _intent_value(intent) for intent in table.intents.values()}


def _intent_key(intent: Intent) -> str:
    match intent.key:
        case HoldKey(topic, None):
            return json.dumps(["TOPIC", topic])
        case HoldKey(topic, cluster_name):
            return json.dumps(["TOPIC", topic, cluster_name])
        case BrokerKey(cluster_name, broker_name):
            return json.dumps(["GROUP", cluster_name, broker_name])


def _intent_value(intent: Intent) -> str:
    fields = {name: getattr(intent, name) for name in _IntentValue.model_fields}
    return json.dumps(fields | {"kind": intent.kind.name})


def _intent_content(rows: Mapping[str, str]) -> IntentTable:
    return IntentTable.of(sorted(itertools.starmap(_intent, rows.items()), key=attrgetter("since_millis")))


def _intent(text: str, json_value: str) -> Intent:
    """The intent of a row. Raises BrokenRows, which names the row and its first error."""
    try:
        value = _IntentValue.model_validate_json(json_value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "value"
        reason = " ".join(first["msg"].split())  # the error quotes the value, which may contain line breaks
        raise BrokenRows(f"the row {text[:_KEY_SHOWN]!r}: {place}: {reason}") from error
    kind = IntentKind[value.kind]
    key: HoldKey | BrokerKey
    match kind is IntentKind.TOPIC_HOLD, _parts(text):
        case True, ["TOPIC", topic]:
            key = HoldKey(topic, None)
        case True, ["TOPIC", topic, cluster_name]:
            key = HoldKey(topic, cluster_name)
        case False, ["GROUP", cluster_name, broker_name]:
            key = BrokerKey(cluster_name, broker_name)
        case _:
            raise BrokenRows(f"the key {text[:_KEY_SHOWN]!r} is not of a {kind.name}")
    return Intent(kind, key, value.caller, value.since_millis, value.comment, value.ends_at_millis)


INTENTS = DurableTable("intents", _intent_rows, _intent_content)

TABLES: tuple[DurableTable[Any], ...] = (KV_CONFIG, SETTINGS, INTENTS)
"""All tables, for tests and backups that must leave none out."""
