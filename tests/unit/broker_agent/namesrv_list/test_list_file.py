"""ListFile: whatever way the file is rewritten, the last good list is in force."""

from __future__ import annotations

import queue
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_agent import namesrv_list
from broker_agent.namesrv_list import ListFile
from groundwork.endpoints import Endpoint
from tests.support.fakes.name_system import endpoints
from tests.support.fakes.registering_name_server import DEADLINE
from tests.support.programs.processes import eventually


class WatchedFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("a:1\n")
        self.told: queue.Queue[tuple[Endpoint, ...]] = queue.Queue()
        self.source = ListFile(path, endpoints("a:1"))
        self.source.start(self.told.put)

    def stop(self) -> None:
        self.source.stop()
        self.source.join(DEADLINE)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedFile]:
    monkeypatch.setattr(namesrv_list, "REREAD_MILLIS", 200)
    watching = WatchedFile(tmp_path / "list")
    yield watching
    watching.stop()


def test_a_file_that_is_written_anew_is_read(watched: WatchedFile) -> None:
    watched.path.write_text("b:1\n")
    assert watched.told.get(timeout=DEADLINE) == endpoints("b:1")


def test_a_file_that_is_replaced_by_renaming_is_read_each_time(watched: WatchedFile) -> None:
    for port in (2, 3, 4):
        fresh = watched.path.with_suffix(".new")
        fresh.write_text(f"b:{port}\n")
        fresh.rename(watched.path)
        assert watched.told.get(timeout=DEADLINE) == endpoints(f"b:{port}")


def test_a_link_that_is_turned_as_a_config_map_does_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namesrv_list, "REREAD_MILLIS", 200)
    for version, content in (("..1", "a:1"), ("..2", "b:1")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "list").write_text(content)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "list").symlink_to("..data/list")
    told: queue.Queue[tuple[Endpoint, ...]] = queue.Queue()
    source = ListFile(tmp_path / "list", endpoints("a:1"))
    source.start(told.put)
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert told.get(timeout=DEADLINE) == endpoints("b:1")
    source.stop()
    source.join(DEADLINE)


def test_a_broken_missing_or_overlong_file_keeps_the_list_and_is_logged_once(watched: WatchedFile) -> None:
    with capture_logs() as logs:
        watched.path.write_text("b:1;;c:2\n")
        eventually(lambda: logs, within_seconds=DEADLINE)
        watched.path.unlink()
        watched.path.write_bytes(b"x" * 100_000)
        watched.path.write_text("c:1\n")
        assert watched.told.get(timeout=DEADLINE) == endpoints("c:1")
    assert [(entry["event"], entry["source"]) for entry in logs] == [
        ("namesrv_list_bad", str(watched.path)),
        ("namesrv_list_good_again", str(watched.path)),
    ]
    assert logs[0]["kept"] == ["a:1"]
    assert watched.told.empty()


def test_a_folder_that_goes_and_comes_back_is_followed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namesrv_list, "REREAD_MILLIS", 200)
    folder = tmp_path / "folder"
    folder.mkdir()
    watching = WatchedFile(folder / "list")
    with capture_logs() as logs:
        shutil.rmtree(folder)
        eventually(lambda: logs, within_seconds=DEADLINE)
        folder.mkdir()
        (folder / "list").write_text("b:1")
        assert watching.told.get(timeout=DEADLINE) == endpoints("b:1")
    watching.stop()


def test_a_file_whose_folder_cannot_be_watched_is_read_now_and_then(
    watched: WatchedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.stop()

    def no_watches_left(*_: object, **__: object) -> None:
        raise OSError(28, "no inotify watches are left")

    monkeypatch.setattr(namesrv_list, "watch", no_watches_left)
    again = WatchedFile(tmp_path / "list")
    again.path.write_text("b:1")
    assert again.told.get(timeout=DEADLINE) == endpoints("b:1")
    again.stop()
