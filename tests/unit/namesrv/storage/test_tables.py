"""The durable tables: rows hold any content, and rows that are wrong are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKey, IntentKind, IntentTable
from namesrv.storage import tables
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.tables import INTENTS, KV_CONFIG, TABLES, BrokenRows, DurableTable, read_rocketmq_kv_config
from tests.unit.namesrv.storage.storage_inputs import CONTENTS

WIPE = {"kind": "WIPE_WRITE_PERM", "caller": "c", "since_millis": 1, "comment": "", "ends_at_millis": None}
HOLD = {**WIPE, "kind": "TOPIC_HOLD"}
GROUP_KEY, HOLD_KEY = '["GROUP", "c", "b"]', '["TOPIC", "t"]'


def without(value: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: part for name, part in value.items() if name != field}


def test_no_table_is_left_out_of_all_tables() -> None:
    assert set(TABLES) == {thing for thing in vars(tables).values() if isinstance(thing, DurableTable)}
    assert len({table.name for table in TABLES}) == len(TABLES)
    assert {table.name for table in TABLES} == CONTENTS.keys()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
@given(data=st.data())
def test_rows_in_any_order_make_the_content_they_were_made_of(table: DurableTable[Any], data: st.DataObject) -> None:
    content = data.draw(CONTENTS[table.name])
    rows = data.draw(st.permutations(list(table.encode(content).items())))
    assert table.decode(dict(rows)) == content


@given(CONTENTS["intents"])
def test_intents_are_loaded_oldest_first(content: IntentTable) -> None:
    loaded = INTENTS.decode(INTENTS.encode(content))
    since = [intent.since_millis for intent in loaded.intents.values()]
    assert since == sorted(since)


def test_a_group_and_a_hold_of_the_same_names_are_two_intents() -> None:
    keys: list[IntentKey] = [
        BrokerKey("t", "c"),
        HoldKey("t", "c"),
        HoldKey("t", None),
        HoldKey("t", "None"),
        HoldKey("t", ""),
    ]
    wipe, hold = IntentKind.WIPE_WRITE_PERM, IntentKind.TOPIC_HOLD
    intents = [Intent(wipe if isinstance(key, BrokerKey) else hold, key, "c", at) for at, key in enumerate(keys)]
    assert list(INTENTS.decode(INTENTS.encode(IntentTable.of(intents))).intents) == keys


BROKEN: list[tuple[DurableTable[Any], str, object, str]] = [
    (KV_CONFIG, "namespace", "v", "is not JSON"),
    (KV_CONFIG, "[" * 100_000, "v", "is not JSON"),
    (KV_CONFIG, r'["\ud800", "key"]', "v", "is not JSON"),
    (KV_CONFIG, '"ab"', "v", "is not a list of texts"),
    (KV_CONFIG, '["a", 1]', "v", "is not a list of texts"),
    (KV_CONFIG, '["a"]', "v", "does not have two parts"),
    (KV_CONFIG, '["a", "b", "c"]', "v", "does not have two parts"),
    (INTENTS, GROUP_KEY, "{", "value: Invalid JSON"),
    (INTENTS, GROUP_KEY, without(WIPE, "ends_at_millis"), "ends_at_millis: Field required"),
    (INTENTS, GROUP_KEY, {**WIPE, "kind": "DRAIN"}, "kind: Input should be 'WIPE_WRITE_PERM'"),
    (INTENTS, GROUP_KEY, {**WIPE, "since_millis": "1"}, "since_millis: Input should be a valid integer"),
    (INTENTS, GROUP_KEY, {**WIPE, "since_millis": 2**63}, "since_millis: Input should be less than"),
    (INTENTS, GROUP_KEY, {**WIPE, "comment": None}, "comment: Input should be a valid string"),
    (INTENTS, GROUP_KEY, {**WIPE, "until_broker": "b"}, "until_broker: Extra inputs are not permitted"),
    (INTENTS, '["GROUP", "c"]', WIPE, "is not of a WIPE_WRITE_PERM"),
    (INTENTS, '["ZONE", "c", "b"]', WIPE, "is not of a WIPE_WRITE_PERM"),
    (INTENTS, HOLD_KEY, WIPE, "is not of a WIPE_WRITE_PERM"),
    (INTENTS, GROUP_KEY, HOLD, "is not of a TOPIC_HOLD"),
    (INTENTS, '["TOPIC"]', HOLD, "is not of a TOPIC_HOLD"),
]


@pytest.mark.parametrize(("table", "key", "value", "reason"), BROKEN, ids=[f"{row[1][:30]} {row[3]}" for row in BROKEN])
def test_a_broken_row_is_refused_by_its_key_and_reason(
    table: DurableTable[Any], key: str, value: object, reason: str
) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(BrokenRows) as raised:
        table.decode({key: text})
    assert repr(key[:100]) in str(raised.value)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_very_long_key_of_a_broken_row_is_shown_in_part() -> None:
    with pytest.raises(BrokenRows) as raised:
        KV_CONFIG.decode({"k" * 100_000: ""})
    assert len(str(raised.value)) < 200


# RocketMQ's kvConfig.json.


def test_a_folder_without_kv_config_json_has_nothing_to_import(tmp_path: Path) -> None:
    assert read_rocketmq_kv_config(tmp_path / "kvConfig.json") is None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_kv_config_json_is_read_and_its_empty_namespaces_are_dropped(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "kvConfig.json"
    entries = '"ORDER_TOPIC_CONFIG":{"T":"broker-a:8"},"größer":{"€":"quoted \\"text\\"\\n"}'
    file.write_text(f'{{\n\t"configTable":{{{entries},"gone":{{}}\n\t}}\n}}', encoding=encoding)
    table = read_rocketmq_kv_config(file)
    assert table is not None
    assert table.namespaces == {"ORDER_TOPIC_CONFIG": {"T": "broker-a:8"}, "größer": {"€": 'quoted "text"\n'}}


NOT_KV_CONFIG = {
    "empty": (b"", "is not JSON in UTF-8"),
    "not UTF-8": (b'{"configTable": {"ns": {"key": "\xff"}}}', "is not JSON in UTF-8"),
    "half a character": (rb'{"configTable": {"ns": {"key": "\ud800"}}}', "is not JSON in UTF-8"),
    "nested too deep": (b"[" * 100_000, "is not JSON in UTF-8"),
    "without a table": (b"{}", "does not hold a configTable of texts"),
    "namespace is a text": (b'{"configTable": {"ns": "x"}}', "does not hold a configTable of texts"),
    "value is a number": (b'{"configTable": {"ns": {"key": 1}}}', "does not hold a configTable of texts"),
}


@pytest.mark.parametrize(("content", "reason"), NOT_KV_CONFIG.values(), ids=NOT_KV_CONFIG)
def test_a_broken_kv_config_json_is_refused_with_a_remedy(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "kvConfig.json"
    file.write_bytes(content)
    with pytest.raises(DataDirError) as raised:
        read_rocketmq_kv_config(file)
    assert str(raised.value) == f"{file} {reason}; correct it, or move it away"


def test_a_folder_named_kv_config_json_is_refused_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "kvConfig.json"
    file.mkdir()
    with pytest.raises(DataDirError) as raised:
        read_rocketmq_kv_config(file)
    assert str(raised.value) == f"{file}: Is a directory: move away what is in its place"
