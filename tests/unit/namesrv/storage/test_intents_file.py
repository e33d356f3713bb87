"""IntentsFile: readable, exact, and strict about what it does not know."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKind, IntentTable
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.intents_file import IntentsFile

DRAIN = Intent(IntentKind.WIPE_WRITE_PERM, BrokerKey("größer", "broker-a"), "ops", 1_700_000_000_000, "disk\nswap")
HOLD = Intent(IntentKind.TOPIC_HOLD, HoldKey("Topic", None), "10.0.0.1:5", 1_700_000_000_001, "", 1_800_000_000_000)
TABLE = IntentTable.of([DRAIN, HOLD])

texts = st.text(max_size=8)
millis = st.integers(-(2**63), 2**63 - 1)
groups = st.builds(
    Intent,
    st.sampled_from([IntentKind.WIPE_WRITE_PERM, IntentKind.ADD_WRITE_PERM]),
    st.builds(BrokerKey, texts, texts),
    caller=texts, since_millis=millis, comment=texts, ends_at_millis=st.none() | millis,
)  # fmt: skip
holds = st.builds(
    Intent,
    st.just(IntentKind.TOPIC_HOLD),
    st.builds(HoldKey, texts, st.none() | texts),
    caller=texts, since_millis=millis, comment=texts, ends_at_millis=st.none() | millis,
)  # fmt: skip


def rows_of(folder: Path) -> list[dict[str, Any]]:
    content = json.loads((folder / "intents.json").read_bytes())
    assert content.keys() == {"version", "intents"}
    rows: list[dict[str, Any]] = content["intents"]
    return rows


def test_a_folder_without_a_file_holds_no_intents(tmp_path: Path) -> None:
    assert IntentsFile(tmp_path).load() == IntentTable()
    assert list(tmp_path.iterdir()) == []


@given(intents=st.lists(groups | holds, max_size=5))
def test_any_intents_are_loaded_as_they_were_saved_and_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, intents: list[Intent]
) -> None:
    file = IntentsFile(tmp_path_factory.mktemp("intents"))
    table = IntentTable.of(intents)
    file.save(table)
    loaded = file.load()
    assert list(loaded.intents.items()) == list(table.intents.items())
    assert [type(key) for key in loaded.intents] == [type(key) for key in table.intents]


def test_the_file_is_json_for_people_with_a_version(tmp_path: Path) -> None:
    IntentsFile(tmp_path).save(TABLE)
    content = (tmp_path / "intents.json").read_text(encoding="utf-8")
    assert '\n      "cluster_name": "größer"' in content
    assert json.loads(content) == {
        "version": 1,
        "intents": [
            {
                "kind": "WIPE_WRITE_PERM",
                "cluster_name": "größer",
                "broker_name": "broker-a",
                "caller": "ops",
                "since_millis": 1_700_000_000_000,
                "comment": "disk\nswap",
                "ends_at_millis": None,
            },
            {
                "kind": "TOPIC_HOLD",
                "topic": "Topic",
                "cluster_name": None,
                "caller": "10.0.0.1:5",
                "since_millis": 1_700_000_000_001,
                "comment": "",
                "ends_at_millis": 1_800_000_000_000,
            },
        ],
    }


BROKEN: dict[str, tuple[str, bytes]] = {
    "empty": ("content: Invalid JSON", b""),
    "not UTF-8": ("content: Invalid JSON", b'{"version": 1, "intents": "\xff"}'),
    "nested too deep": ("content: Invalid JSON", b"[" * 100_000),
    "not an object": ("content: ", b"[]"),
    "no version": ("version: Field required", b'{"intents": []}'),
    "another version": ("version: ", b'{"version": 2, "intents": []}'),
    "version is no number": ("version: ", b'{"version": true, "intents": []}'),
    "no intents": ("intents: Field required", b'{"version": 1}'),
    "intents are no list": ("intents: ", b'{"version": 1, "intents": {}}'),
    "more than that": ("more: ", b'{"version": 1, "intents": [], "more": 1}'),
}
WRONG_FIELDS: dict[str, dict[str, Any]] = {
    "unknown kind": {"kind": "FREEZE"},
    "kind with a line break": {"kind": "WIPE\nWRITE"},
    "kind by its number": {"kind": 1},
    "kind of another key": {"kind": "TOPIC_HOLD"},
    "cluster of no group": {"cluster_name": None},
    "name is a number": {"broker_name": 7},
    "time is a text": {"since_millis": "1700000000000"},
    "time is a fraction": {"since_millis": 1.5},
    "time is a truth": {"since_millis": True},
    "time that no message carries": {"ends_at_millis": 2**63},
    "half a character": {"comment": "\ud800"},
    "unknown field": {"only_reads": True},
}


def refused(folder: Path, problem: str) -> None:
    """The file is broken, and without a copy it cannot be loaded."""
    with pytest.raises(DataDirError, match=rf"intents\.json does not hold intents of version 1: {problem}") as raised:
        IntentsFile(folder).load()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("problem", "content"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_list_of_intents_is_broken(tmp_path: Path, problem: str, content: bytes) -> None:
    (tmp_path / "intents.json").write_bytes(content)
    refused(tmp_path, re.escape(problem))


@pytest.mark.parametrize("fields", WRONG_FIELDS.values(), ids=WRONG_FIELDS)
def test_an_intent_with_a_wrong_or_unknown_field_is_broken(tmp_path: Path, fields: dict[str, Any]) -> None:
    IntentsFile(tmp_path).save(TABLE)
    rows = rows_of(tmp_path)
    rows[0].update(fields)
    (tmp_path / "intents.json").write_text(json.dumps({"version": 1, "intents": rows}))
    refused(tmp_path, r"(intents\.0|content: Invalid JSON)")


@pytest.mark.parametrize("place", [0, 1])
def test_an_intent_without_any_one_of_its_fields_is_broken(tmp_path: Path, place: int) -> None:
    IntentsFile(tmp_path).save(TABLE)
    for field in rows_of(tmp_path)[place]:
        IntentsFile(tmp_path).save(TABLE)
        (tmp_path / "intents.json.bak").unlink(missing_ok=True)
        rows = rows_of(tmp_path)
        del rows[place][field]
        (tmp_path / "intents.json").write_text(json.dumps({"version": 1, "intents": rows}))
        refused(tmp_path, rf"intents\.{place}.*: ")
        (tmp_path / "intents.json").unlink()


def test_two_intents_about_one_group_are_broken(tmp_path: Path) -> None:
    IntentsFile(tmp_path).save(IntentTable.of([DRAIN]))
    rows = rows_of(tmp_path)
    (tmp_path / "intents.json").write_text(json.dumps({"version": 1, "intents": rows * 2}))
    with pytest.raises(DataDirError, match="two intents about the same thing"):
        IntentsFile(tmp_path).load()


def test_a_broken_file_is_restored_from_its_copy_with_a_warning(tmp_path: Path) -> None:
    file = IntentsFile(tmp_path)
    file.save(IntentTable.of([DRAIN]))
    file.save(TABLE)
    (tmp_path / "intents.json").write_bytes(b'{"version": 1, "intents": [')
    with capture_logs() as logs:
        assert file.load() == IntentTable.of([DRAIN])
    assert [line["event"] for line in logs] == ["restored_from_copy"]
    assert (tmp_path / "intents.json.broken").exists()
