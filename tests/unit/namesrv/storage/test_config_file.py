"""ConfigFile: the format of the file that holds what operators changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from namesrv.storage.config_file import CONFIG_FILE, ConfigFile
from namesrv.storage.data_dir import DataDirError

FIRST = {"returnOrderTopicConfigToBroker": "false"}
SECOND = {"returnOrderTopicConfigToBroker": "true", "orderMessageEnable": "true"}

BROKEN = {
    "empty": b"",
    "cut off": b'{"returnOrderTopicConfigToBroker": "fal',
    "not UTF-8": b'{"orderMessageEnable": "\xff"}',
    "no object": b'["orderMessageEnable"]',
    "a value that is no text": b'{"orderMessageEnable": "true", "scanNotActiveBrokerInterval": 50}',
    "nested too deeply": b"[" * 100_000,
}


def test_without_a_file_nothing_was_changed_and_none_is_made(tmp_path: Path) -> None:
    assert ConfigFile(tmp_path).load() == {}
    assert list(tmp_path.iterdir()) == []


def test_what_is_saved_is_an_object_of_texts_and_is_loaded_again(tmp_path: Path) -> None:
    for texts in (FIRST, SECOND):
        ConfigFile(tmp_path).save(texts)
    assert ConfigFile(tmp_path).load() == SECOND
    assert json.loads((tmp_path / CONFIG_FILE).read_bytes()) == SECOND
    assert json.loads((tmp_path / f"{CONFIG_FILE}.bak").read_bytes()) == FIRST


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_gives_way_to_its_copy(tmp_path: Path, content: bytes) -> None:
    for texts in (FIRST, SECOND):
        ConfigFile(tmp_path).save(texts)
    (tmp_path / CONFIG_FILE).write_bytes(content)
    with capture_logs() as logs:
        assert ConfigFile(tmp_path).load() == FIRST
    assert [line["event"] for line in logs] == ["restored_from_copy"]


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_without_a_copy_is_an_error_that_says_what_is_wrong_with_it(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / CONFIG_FILE).write_bytes(content)
    reason = "(is not JSON in UTF-8|does not hold an object of texts|has no text in quotes as the value of .*); "
    with pytest.raises(DataDirError, match=f"{CONFIG_FILE} {reason}"):
        ConfigFile(tmp_path).load()


@pytest.mark.parametrize("value", [50, 1.5, True, None, ["x"]])
def test_a_value_that_is_no_text_is_told_by_its_key(tmp_path: Path, value: object) -> None:
    (tmp_path / CONFIG_FILE).write_text(
        json.dumps({**FIRST, "scanNotActiveBrokerInterval": value, "orderMessageEnable": 1})
    )
    with pytest.raises(DataDirError, match="has no text in quotes as the value of 'scanNotActiveBrokerInterval'; "):
        ConfigFile(tmp_path).load()
