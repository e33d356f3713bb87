"""A mapping that never changes: a changed copy shares with it what is the same."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from namesrv.core.pace import paced

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

CHUNK = 85
"""Names of a chunk, as many as fill a dictionary of 128 slots. A change copies the chunks that it touches, at 1 µs
each, and the list of all."""

SPARE = 100_000
"""Names without a row that are kept beyond as many as have one."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class PersistentMap(Mapping[KeyT, ValueT], Generic[KeyT, ValueT]):
    """Rows by name. A reader that takes a reference has all rows of that moment, on any thread, without a copy.

    Names lie in chunks in the order of their arrival, because names that arrive together change together: a broker's
    registration changes all its topics, and their chunks are few. The chunk of a name never changes, so all versions
    share one index, which only grows. ``compacted`` begins a new one.
    """

    _index: dict[KeyT, int] = field(default_factory=dict)
    """The chunk of each name that has a row in any version."""
    chunks: tuple[dict[KeyT, ValueT], ...] = ()
    _len: int = 0
    names_version: int = 0
    """Rises when a name is added or removed."""

    def __len__(self) -> int:
        return self._len

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None  # type: ignore[arg-type]  # nothing else is in here

    def __iter__(self) -> Iterator[KeyT]:
        return itertools.chain.from_iterable(self.chunks)

    def __getitem__(self, name: KeyT) -> ValueT:
        try:
            return self.chunks[self._index[name]][name]
        except IndexError:  # added later
            raise KeyError(name) from None

    def get(self, name: KeyT, default: ValueT | None = None) -> ValueT | None:  # type: ignore[override]  # quicker
        number = self._index.get(name)
        if number is None or number >= len(self.chunks):
            return default
        return self.chunks[number].get(name, default)

    def rows(self) -> Iterator[tuple[KeyT, ValueT]]:
        return itertools.chain.from_iterable(chunk.items() for chunk in self.chunks)

    def changed(self, changes: Mapping[KeyT, ValueT | None]) -> PersistentMap[KeyT, ValueT]:
        """The same rows but for some that are added, replaced or, with None, removed.

        Only one thread at a time may call it, for any version. It has yield points.
        """
        if not changes:
            return self
        index, chunks, copies = self._index, list(self.chunks), dict[int, dict[KeyT, ValueT]]()
        length, has_same_names = self._len, True
        for name, value in paced(changes.items()):
            number = index.get(name)
            if number is None:
                number = index[name] = len(index) // CHUNK
            chunk = copies.get(number)
            if chunk is None:
                while number >= len(chunks):
                    chunks.append({})
                chunk = copies[number] = chunks[number] = chunks[number].copy()
            if (name in chunk) is (value is None):
                has_same_names = False
                length += -1 if value is None else 1
            if value is not None:
                chunk[name] = value
            else:
                chunk.pop(name, None)
        return PersistentMap(index, tuple(chunks), length, self.names_version + (not has_same_names))

    @property
    def is_sparse(self) -> bool:
        """Whether more names have no row than have one, and ``compacted`` pays."""
        return len(self._index) > 2 * self._len + SPARE

    def compacted(self) -> PersistentMap[KeyT, ValueT]:
        """The same rows without the names that have none; this map if that does not pay."""
        if not self.is_sparse:
            return self
        fresh = PersistentMap[KeyT, ValueT](names_version=self.names_version - bool(self._len))
        return fresh.changed(dict(paced(self.rows())))
