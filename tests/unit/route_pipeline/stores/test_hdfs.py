"""HDFS without a cluster: how its client is made, and what is told and left behind when it fails."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from route_pipeline.log.log_reader import WHOLE_BYTES, read_rows
from route_pipeline.log.protocol.commits import CHANGES, DataFile
from route_pipeline.stores.store import StoreUnavailableError
from route_pipeline.stores.urls import open_store
from tests.support.programs.s3_server import forget_clients


class FailingFile(io.BytesIO):
    """A file whose data nodes do not answer."""

    def read(self, _: int | None = -1, /) -> bytes:
        raise OSError("Connection refused (os error 111)")


class Cluster:
    """A cluster in memory, and the client of it. Its errors are as those of hdfs-native."""

    def __init__(self) -> None:
        self.asked_for: list[tuple[str | None, int | None]] = []
        """Host and port of each client that was made."""
        self.files: dict[str, bytes] = {}
        self.fails_at = ""
        """A folder that cannot be listed, or a file that cannot be read, for a moment."""
        self.is_full = False

    def client(self, host: str | None, port: int | None, **_: object) -> Cluster:
        """As the class of the client."""
        self.asked_for.append((host, port))
        return self

    def pipe_file(self, path: str, content: bytes) -> None:
        self.files[path] = b"" if self.is_full else content
        if self.is_full:
            raise OSError("the quota is used up")

    def mv(self, path: str, target: str) -> None:
        self.files[target] = self.files.pop(path)

    def rm_file(self, path: str) -> None:
        self.files.pop(path, None)

    def exists(self, path: str) -> bool:
        return path in self.files

    def ls(self, path: str, *, detail: bool) -> list[dict[str, object]]:
        assert detail
        if path == self.fails_at:
            raise OSError("Connection refused (os error 111)")
        below = {name.removeprefix(path).split("/")[1] for name in self.files if name.startswith(f"{path}/")}
        if not below:
            raise FileNotFoundError(path)
        return [self._entry(f"{path}/{name}") for name in sorted(below)]

    def find(self, path: str, *, detail: bool) -> dict[str, object]:
        """As fsspec's, which passes over what cannot be listed."""
        found: dict[str, object] = {}
        with suppress(OSError):
            for entry in self.ls(path, detail=detail):
                name = str(entry["name"])
                found |= self.find(name, detail=detail) if entry["type"] == "directory" else {name: entry}
        return found

    def open(self, path: str, mode: str) -> BinaryIO:
        assert mode == "rb"
        return (FailingFile if path == self.fails_at else io.BytesIO)(self.files[path])

    def _entry(self, name: str) -> dict[str, object]:
        kind = "file" if name in self.files else "directory"
        return {"name": name, "type": kind, "size": len(self.files.get(name, b"")), "modification_time": 0}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster that stores reach by whatever name."""
    made = Cluster()
    module: Any = ModuleType("hdfs_native.fsspec")
    module.HdfsFileSystem = made.client
    monkeypatch.setitem(sys.modules, "hdfs_native.fsspec", module)
    forget_clients()
    yield made
    forget_clients()


@pytest.mark.parametrize("host", ["MyCluster", "name-node:8020"])
def test_the_name_of_a_cluster_reaches_the_client_as_it_is_written(host: str, cluster: Cluster) -> None:
    assert open_store(f"hdfs://{host}/some/log").create("1", b"1")
    assert cluster.asked_for == [(host, None)]
    assert cluster.files == {"/some/log/1": b"1"}


def test_files_are_listed_with_those_of_folders(cluster: Cluster) -> None:
    cluster.files |= {"/log/1": b"1", "/log/data/day/22": b"22", "/other/3": b"3"}
    store = open_store("hdfs://cluster/log")
    assert [(file.path, file.size) for file in store.files()] == [("1", 1), ("data/day/22", 2)]
    assert store.files("none") == []


@pytest.mark.parametrize("folder", ["/log/data", "/log/data/day"])
def test_a_folder_that_cannot_be_listed_is_an_error_and_not_empty(folder: str, cluster: Cluster) -> None:
    cluster.files |= {"/log/data/1": b"1", "/log/data/day/22": b"22"}
    cluster.fails_at = folder
    with pytest.raises(StoreUnavailableError, match="Connection refused"):
        open_store("hdfs://cluster/log").files("data")


def test_a_file_that_could_not_be_written_whole_does_not_stay(cluster: Cluster) -> None:
    cluster.is_full = True
    with pytest.raises(StoreUnavailableError, match="the quota is used up"):
        open_store("hdfs://cluster/log").create("_commits/1", b"1")
    assert cluster.files == {}


def test_a_large_file_that_cannot_be_read_now_is_not_taken_for_damaged(cluster: Cluster) -> None:
    content = io.BytesIO()
    pq.write_table(pa.table({"row": [1, 2, 3]}), content)
    cluster.files["/log/data/1"] = content.getvalue()
    file = DataFile("data/1", CHANGES, "2026-11-23", 3, WHOLE_BYTES + 1, "batch", ())
    store = open_store("hdfs://cluster/log")
    assert sum(rows.num_rows for rows in read_rows(store, [file])) == 3
    cluster.fails_at = "/log/data/1"
    with pytest.raises(StoreUnavailableError, match="data/1 cannot be reached: Connection refused"):
        list(read_rows(store, [file]))
