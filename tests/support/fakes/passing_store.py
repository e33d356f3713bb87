"""Stores that pass everything on to another one, and count what is asked or die meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

from route_pipeline.stores.store import Store, StoredFile


class Died(BaseException):
    """The program is dead: nothing may catch it but the test."""


@dataclass
class PassingStore:
    """Counts what is asked."""

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
        self.done.update(read=1, bytes=len(content))
        return content

    def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        contents = self.inner.read_many(paths)
        self.done.update(read=len(contents), bytes=sum(len(content) for content in contents if content))
        return contents

    def create(self, path: str, content: bytes) -> bool:
        with self._step("create"):
            return self.inner.create(path, content)

    @contextmanager
    def open_new(self, path: str) -> Iterator[BinaryIO]:
        with self._step("open_new"), self.inner.open_new(path) as stream:
            yield stream

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        self.done["open"] += 1
        with self.inner.open(path) as stream:
            yield stream

    def delete(self, path: str) -> None:
        with self._step("delete"):
            self.inner.delete(path)

    def make_folder(self, path: str) -> None:
        with self._step("make_folder"):
            self.inner.make_folder(path)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Around what changes the store."""
        self.done[name] += 1
        yield


@dataclass
class DyingStore(PassingStore):
    """Dies before or after one of the steps that change it."""

    dies_before: int | None = None
    """Number of the moment before which it dies, from 0."""
    moments: int = 0
    """Moments so far: two for each step, before and after it."""

    def delete(self, path: str) -> None:
        if self.dies_before is None or self.moments <= self.dies_before:  # the dead do not clean up
            super().delete(path)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._moment()
        yield
        self._moment()

    def _moment(self) -> None:
        self.moments += 1
        if self.dies_before is not None and self.moments == self.dies_before + 1:
            raise Died
