"""KvConfigFile: what is read back after a crash at any step, and what is left after a failed write."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from groundwork.files import replace_durably
from namesrv.core.model import EMPTY, KvConfigTable
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.kv_config_file import KvConfigFile

ONE = KvConfigTable.of({"ns": {"key": "one"}})
TWO = KvConfigTable.of({"ns": {"key": "two"}, "größer": {"€": 'quoted "text"\n'}})
BROKEN = {
    "empty": b"",
    "cut off": b'{"configTable": {"ns": {"k',
    "not an object": b"[]",
    "without a table": b"{}",
    "table is a list": b'{"configTable": []}',
    "namespace is a text": b'{"configTable": {"ns": "x"}}',
    "value is a number": b'{"configTable": {"ns": {"key": 1}}}',
    "not UTF-8": b'{"configTable": {"ns": {"key": "\xff"}}}',
    "half a character": rb'{"configTable": {"ns": {"key": "\ud800"}}}',
    "nested too deep": b"[" * 100_000,
}


def main(folder: Path) -> Path:
    return folder / "kvConfig.json"


def copy(folder: Path) -> Path:
    return folder / "kvConfig.json.bak"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder whose file holds TWO and whose copy holds ONE."""
    file = KvConfigFile(tmp_path)
    file.save(ONE)
    file.save(TWO)
    return tmp_path


def test_a_folder_without_a_file_holds_the_empty_configuration(tmp_path: Path) -> None:
    assert KvConfigFile(tmp_path).load() is EMPTY
    assert list(tmp_path.iterdir()) == []


def test_what_was_saved_is_loaded_and_the_copy_holds_what_was_before(saved: Path) -> None:
    assert KvConfigFile(saved).load() == TWO
    copy(saved).replace(main(saved))
    assert KvConfigFile(saved).load() == ONE


def test_the_format_is_that_of_rocketmq_indented(saved: Path) -> None:
    text = main(saved).read_text(encoding="utf-8")
    assert json.loads(text) == {"configTable": {"ns": {"key": "two"}, "größer": {"€": 'quoted "text"\n'}}}
    assert '\n      "key": "two"' in text


def test_a_file_of_rocketmq_is_read_and_its_empty_namespaces_are_dropped(tmp_path: Path) -> None:
    main(tmp_path).write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:8"},"gone":{}\n\t}\n}')
    assert KvConfigFile(tmp_path).load().namespaces == {"ORDER_TOPIC_CONFIG": {"T": "broker-a:8"}}


def test_a_crash_while_the_new_file_was_written_leaves_the_old_one(saved: Path) -> None:
    (saved / "kvConfig.json.tmp").write_bytes(b'{"configTable": {"ns"')
    assert KvConfigFile(saved).load() == TWO


def test_a_crash_between_copy_and_file_leaves_the_old_one(saved: Path) -> None:
    copy(saved).write_bytes(main(saved).read_bytes())
    assert KvConfigFile(saved).load() == TWO


def test_a_crash_while_the_copy_was_written_leaves_the_file(saved: Path) -> None:
    (saved / "kvConfig.json.bak.tmp").write_bytes(b"{")
    assert KvConfigFile(saved).load() == TWO


def test_a_missing_file_is_restored_from_the_copy_with_a_warning(saved: Path) -> None:
    main(saved).unlink()
    with capture_logs() as logs:
        assert KvConfigFile(saved).load() == ONE
    assert [(line["event"], line["log_level"]) for line in logs] == [("restored_from_copy", "warning")]
    assert "is missing" in logs[0]["problem"]
    assert main(saved).read_bytes() == copy(saved).read_bytes()


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_put_aside_and_restored_from_the_copy(saved: Path, content: bytes) -> None:
    main(saved).write_bytes(content)
    assert KvConfigFile(saved).load() == ONE
    assert (saved / "kvConfig.json.broken").read_bytes() == content
    KvConfigFile(saved).save(TWO)
    copy(saved).replace(main(saved))
    assert KvConfigFile(saved).load() == ONE, "the next save must not replace the good copy by the broken file"


@pytest.mark.parametrize("copied", [None, b"", b"{}"], ids=["no copy", "empty copy", "broken copy"])
def test_where_file_and_copy_are_broken_nothing_is_changed_and_both_are_named(
    saved: Path, copied: bytes | None
) -> None:
    main(saved).write_bytes(b"{")
    copy(saved).unlink()
    if copied is not None:
        copy(saved).write_bytes(copied)
    before = {file: file.read_bytes() for file in saved.iterdir()}
    with pytest.raises(DataDirError, match=r"kvConfig\.json is not JSON.*; .*kvConfig\.json\.bak") as raised:
        KvConfigFile(saved).load()
    assert "\n" not in str(raised.value)
    assert {file: file.read_bytes() for file in saved.iterdir()} == before


def test_a_missing_file_with_a_broken_copy_is_refused(saved: Path) -> None:
    main(saved).unlink()
    copy(saved).write_bytes(b"{")
    with pytest.raises(DataDirError, match=r"is missing; .*bak is not JSON"):
        KvConfigFile(saved).load()


def test_a_file_that_cannot_be_read_is_refused_and_the_copy_does_not_stand_in(saved: Path) -> None:
    main(saved).unlink()
    main(saved).mkdir()
    with pytest.raises(DataDirError, match=r"kvConfig\.json: Is a directory"):
        KvConfigFile(saved).load()


@pytest.mark.parametrize("name", ["kvConfig.json.tmp", "kvConfig.json.bak.tmp"])
def test_a_full_disk_leaves_the_file_as_it_was(saved: Path, name: str) -> None:
    (saved / name).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        KvConfigFile(saved).save(ONE)
    assert KvConfigFile(saved).load() == TWO
    (saved / name).unlink()
    KvConfigFile(saved).save(ONE)
    assert KvConfigFile(saved).load() == ONE


@pytest.mark.parametrize("before", [None, ONE], ids=["first write", "later write"])
def test_a_disk_that_fails_after_the_file_is_in_place_gets_the_old_one_back(
    tmp_path: Path, before: KvConfigTable | None
) -> None:
    failures = [OSError(errno.EIO, "Input/output error")]

    def fails_once_late(file: Path, content: bytes) -> None:
        replace_durably(file, content)
        if file == main(tmp_path) and failures:
            raise failures.pop()

    if before is not None:
        KvConfigFile(tmp_path).save(before)
    with pytest.raises(OSError, match="Input/output"):
        KvConfigFile(tmp_path, fails_once_late).save(TWO)
    assert KvConfigFile(tmp_path).load() == (before or EMPTY)
