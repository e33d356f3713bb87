"""A list in a file: whatever way the file is rewritten, the last good list is in force."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_agent.namesrv_list import list_file
from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import CHECK_SECONDS
from tests.support.fakes.name_system import endpoints
from tests.support.patience import TIMEOUT
from tests.support.virtual_clock import VirtualClock


class Watching:
    """A list file that is watched on virtual time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.time = VirtualClock()
        self.told: list[tuple[Endpoint, ...]] = []
        self.source = list_file(path, self.time.wait)
        self.source.start(self.told.append)
        self.time.settle(1)

    def look(self) -> None:
        """Lets the file look the same twice."""
        self.time.run(2 * CHECK_SECONDS)

    def stop(self) -> None:
        self.source.stop()
        self.source.join(TIMEOUT)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watching]:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "list").write_text("a:1\n")
    watching = Watching(folder / "list")
    yield watching
    watching.stop()


def test_a_link_that_is_turned_as_a_config_map_does_is_followed(tmp_path: Path) -> None:
    for version, content in (("..1", "a:1"), ("..2", "b:1")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "list").write_text(content)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "list").symlink_to("..data/list")
    watching = Watching(tmp_path / "list")
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    watching.look()
    assert watching.told == [endpoints("b:1")]
    watching.stop()


def test_a_broken_missing_or_overlong_file_keeps_the_list_and_is_logged_once(watched: Watching) -> None:
    source = str(watched.path)
    for broken in (b"b:1;;c:2\n", b"x" * 100_000, None):
        with capture_logs() as logs:
            watched.path.unlink()
            if broken is not None:
                watched.path.write_bytes(broken)
            watched.look()
            watched.look()
            assert watched.told == []
            watched.path.write_text("a:1\n")
            watched.look()
        assert [(entry["event"], entry["source"]) for entry in logs] == [
            ("namesrv_list_bad", source),
            ("namesrv_list_good_again", source),
        ]
        assert logs[0]["kept"] == ["a:1"]
        assert watched.told == []
