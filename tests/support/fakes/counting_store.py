"""A store that counts what it is asked to do, and the bytes that are read of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

from route_pipeline.stores.store import Store, StoredFile


@dataclass
class CountingStore:
    """Passes everything on to another store."""

    inner: Store
    done: Counter[str] = field(default_factory=Counter)
    """Operations by name: one for each file that is listed or read; and ``bytes`` that were read."""

    @property
    def url(self) -> str:
        return self.inner.url

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    def files(self, folder: str = "") -> list[StoredFile]:
        listed = self.inner.files(folder)
        self.done["list"] += len(listed)
        return listed

    def info(self, path: str) -> StoredFile:
        self.done["info"] += 1
        return self.inner.info(path)

    def read(self, path: str) -> bytes:
        content = self.inner.read(path)
        self.done["read"] += 1
        self.done["bytes"] += len(content)
        return content

    def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        contents = self.inner.read_many(paths)
        self.done["read"] += len(contents)
        self.done["bytes"] += sum(len(content) for content in contents if content)
        return contents

    def create(self, path: str, content: bytes) -> bool:
        self.done["create"] += 1
        return self.inner.create(path, content)

    @contextmanager
    def open_new(self, path: str) -> Iterator[BinaryIO]:
        self.done["open_new"] += 1
        with self.inner.open_new(path) as stream:
            yield stream

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        self.done["open"] += 1
        with self.inner.open(path) as stream:
            yield stream

    def delete(self, path: str) -> None:
        self.done["delete"] += 1
        self.inner.delete(path)

    def make_folder(self, path: str) -> None:
        self.inner.make_folder(path)
