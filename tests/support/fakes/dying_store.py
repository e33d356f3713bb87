"""A store whose program dies before or after one of the steps that change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

from route_pipeline.stores.store import Store, StoredFile


class Died(BaseException):
    """The program is dead: nothing may catch it but the test."""


@dataclass
class DyingStore:
    """A store that counts the steps that change it, and dies around one."""

    inner: Store
    dies_before: int | None = None
    """Number of the step before which it dies, from 0; an odd number is the moment after step number // 2."""
    moments: int = field(default=0)
    """Moments so far: two for each step, before and after it."""

    @property
    def url(self) -> str:
        return self.inner.url

    def uri(self, path: str) -> str:
        return self.inner.uri(path)

    def files(self, folder: str = "") -> list[StoredFile]:
        return self.inner.files(folder)

    def info(self, path: str) -> StoredFile:
        return self.inner.info(path)

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        return self.inner.read_many(paths)

    def create(self, path: str, content: bytes) -> bool:
        with self._step():
            return self.inner.create(path, content)

    @contextmanager
    def open_new(self, path: str) -> Iterator[BinaryIO]:
        with self._step(), self.inner.open_new(path) as stream:
            yield stream

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        with self.inner.open(path) as stream:
            yield stream

    def delete(self, path: str) -> None:
        if self.dies_before is not None and self.moments > self.dies_before:
            return  # the dead do not clean up
        with self._step():
            self.inner.delete(path)

    def make_folder(self, path: str) -> None:
        with self._step():
            self.inner.make_folder(path)

    @contextmanager
    def _step(self) -> Iterator[None]:
        self._moment()
        yield
        self._moment()

    def _moment(self) -> None:
        self.moments += 1
        if self.dies_before is not None and self.moments == self.dies_before + 1:
            raise Died
