"""Stores: a folder, and an S3 server over real HTTP. Both keep the same promises."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from route_pipeline.stores.local import LocalStore
from route_pipeline.stores.remote import RemoteStore
from route_pipeline.stores.store import (
    MissingFileError,
    Store,
    StoreError,
    StoreUnavailableError,
    check_creates_once,
)
from route_pipeline.stores.urls import open_store
from tests.support import failpoints
from tests.support.fakes.cutting_proxy import CUT, CuttingProxy
from tests.support.programs.s3_server import forget_clients


@pytest.fixture
def store(place: str) -> Store:
    return open_store(place)


def test_a_file_is_made_once_and_read_as_it_was_made(store: Store) -> None:
    assert store.create("a/1", b"first")
    assert not store.create("a/1", b"second")
    assert store.read("a/1") == b"first"
    assert store.read_many(["a/2", "a/1"]) == [None, b"first"]


def test_of_many_that_make_one_file_at_once_one_does(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: store.create("1", str(number).encode()), range(32)))
    assert made.count(True) == 1
    assert store.read("1") == str(made.index(True)).encode()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_files_are_listed_by_folder_with_their_sizes_and_times(store: Store) -> None:
    assert store.files() == []
    store.make_folder("data/x")
    with store.open_new("data/x/2") as stream:
        stream.write(b"22")
    store.create("data/1", b"1")
    store.create("other", b"")

    assert [(file.path, file.size) for file in store.files("data")] == [("data/1", 1), ("data/x/2", 2)]
    assert len(store.files()) == 3
    assert abs(store.info("data/1").modified - datetime.now(UTC)) < timedelta(minutes=5)
    with store.open("data/x/2") as stream:
        assert stream.read() == b"22"


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/1").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match=r"loop/x cannot be read: Too many levels of symbolic links$"):
        LocalStore(tmp_path).files("loop/x")
    with pytest.raises(StoreError, match=r"data/1 cannot be read: Not a directory$"):
        LocalStore(tmp_path).files("data/1")
    assert LocalStore(tmp_path).files("none") == []


def test_what_is_missing_is_named_and_removing_it_is_no_error(store: Store) -> None:
    for ask in (store.read, store.info):
        with pytest.raises(MissingFileError, match=r"none is missing$"):
            ask("none")
    store.delete("none")
    store.create("there", b"")
    store.delete("there")
    assert store.files() == []


def test_a_store_travels_to_tasks(store: Store) -> None:
    again: Store = pickle.loads(pickle.dumps(store))
    assert again.create("1", b"")
    assert not store.create("1", b"")


def test_a_store_that_makes_files_once_says_what_time_it_is_and_keeps_nothing(store: Store) -> None:
    assert abs(check_creates_once(store) - datetime.now(UTC)) < timedelta(minutes=5)
    assert store.files() == []


def test_a_store_that_overwrites_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a server that does not know the condition: it answers that it made the file.
    monkeypatch.setattr(type(store), "create", lambda *_: True)
    with pytest.raises(StoreError, match=r"overwrites a file .* no log can be on it"):
        check_creates_once(store)


def test_a_file_system_without_links_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = tmp_path / "faults"
    faults.write_text("before link * = EPERM\n")
    failpoints.install(faults, monkeypatch.setattr)
    with pytest.raises(StoreError, match="log: its file system has no hard links"):
        check_creates_once(LocalStore(tmp_path / "log"))


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("ftp://host/routes", "begins with none of file:, s3://"),
        ("s3://", "does not name a place"),
        ("s3:/bucket/routes", "does not name a place"),
        ("s3://bucket//routes", "does not name a place"),
        ("hdfs:///user/routes", "does not name a place: it is to be like hdfs://host/routes"),
        ("file://host/routes", "names the host host"),
        ("/data/[new]", "takes for a pattern"),
    ],
)
def test_a_place_that_cannot_be_is_refused(place: str, problem: str) -> None:
    with pytest.raises(StoreError, match=problem) as caught:
        open_store(place)
    assert place in str(caught.value)


def test_a_place_may_be_a_path_or_a_url(tmp_path: Path) -> None:
    assert open_store(tmp_path / "a b") == open_store(f"file://{tmp_path}/a%20b") == LocalStore(tmp_path / "a b")
    assert open_store(f"file:{tmp_path}") == LocalStore(tmp_path)
    assert open_store("s3a://bucket/routes/") == open_store("s3://bucket/routes") == RemoteStore("s3", "bucket/routes")
    assert open_store("abfss://c@account.dfs.core.windows.net/r").url == "abfss://c@account.dfs.core.windows.net/r"


@pytest.mark.parametrize(("scheme", "client"), [("gs", "gcsfs"), ("abfss", "adlfs"), ("hdfs", "hdfs_native.fsspec")])
def test_a_client_that_is_missing_is_named_with_what_to_install(
    scheme: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, client, None)
    with pytest.raises(StoreError, match=rf"{scheme}:// needs a client that is missing .*pip install -e '\.\["):
        open_store(f"{scheme}://bucket/routes").files()


def test_a_bucket_that_is_not_there_is_named(s3_server: str) -> None:
    assert s3_server
    store = open_store("s3://no-such-bucket/routes")
    with pytest.raises(StoreError, match="s3://no-such-bucket is not there"):
        store.files()
    with pytest.raises(StoreError, match=r"routes/1 cannot be written to: .*bucket does not exist"):
        store.create("1", b"")


def test_no_right_is_told_in_one_line(proxy: CuttingProxy, bucket: str) -> None:
    proxy.fate = lambda method, _path: (403, "AccessDenied") if method == "PUT" else None
    with pytest.raises(StoreError, match="no right to it: AccessDenied") as caught:
        open_store(f"s3://{bucket}/log").create("1", b"")
    assert not isinstance(caught.value, StoreUnavailableError)


def test_a_store_that_is_full_or_down_may_be_asked_again(proxy: CuttingProxy, bucket: str) -> None:
    proxy.fate = lambda method, _path: (507, "InsufficientStorage") if method == "PUT" else None
    store = open_store(f"s3://{bucket}/log")
    with pytest.raises(StoreUnavailableError, match=r"cannot be reached: .*InsufficientStorage"):
        store.create("1", b"")
    proxy.fate = lambda _method, _path: None
    assert store.create("1", b"")


def test_an_endpoint_where_nobody_listens_is_named(monkeypatch: pytest.MonkeyPatch, bucket: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    forget_clients()
    try:
        with pytest.raises(StoreUnavailableError, match=r'Could not connect to the endpoint URL: "http://127.0.0.1:1/'):
            open_store(f"s3://{bucket}/log").files()
    finally:
        forget_clients()


def test_an_answer_that_is_lost_leaves_the_file_made(proxy: CuttingProxy, bucket: str) -> None:
    lost: list[str] = []

    def lose_the_first(method: str, path: str) -> str | None:
        if method == "PUT" and not lost:
            lost.append(path)
            return CUT
        return None

    proxy.fate = lose_the_first
    store = open_store(f"s3://{bucket}/log")
    # The client asks again by itself, and finds the name taken: by its own first request.
    assert not store.create("1", b"mine")
    assert (store.read("1"), len(lost)) == (b"mine", 1)
