"""The KV configuration: namespace to key to value (RocketMQ: KVConfigManager)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of the ordered-topic configuration, which answers to registrations carry (RocketMQ: NamesrvUtil)."""


@dataclass(frozen=True, slots=True)
class KvConfigTable:
    """The whole configuration (RocketMQ: configTable). A change makes a new table; those who hold this one keep it."""

    namespaces: Mapping[str, Mapping[str, str]]
    """No namespace in it is empty: RocketMQ keeps one whose last key was deleted and lists it as empty."""
    key_count: int
    """Keys of all namespaces."""
    byte_size: int
    """UTF-8 bytes of all entries, the namespace counted with each: what a list of everything takes."""

    @classmethod
    def of(cls, namespaces: Mapping[str, Mapping[str, str]]) -> KvConfigTable:
        """A table with these entries."""
        kept = {namespace: dict(entries) for namespace, entries in namespaces.items() if entries}
        sizes = [
            _byte_size(namespace, key, value) for namespace, entries in kept.items() for key, value in entries.items()
        ]
        return cls(kept, len(sizes), sum(sizes))

    def get(self, namespace: str, key: str) -> str | None:
        """The value of a key; None if there is none."""
        return self.entries(namespace).get(key)

    def entries(self, namespace: str) -> Mapping[str, str]:
        """Keys and values of a namespace; none if it is not there."""
        return self.namespaces.get(namespace, {})

    def with_value(self, namespace: str, key: str, value: str) -> KvConfigTable:
        """A table in which the key has the value; this table if it has it already."""
        before = self.get(namespace, key)
        if before == value:
            return self
        return KvConfigTable(
            {**self.namespaces, namespace: {**self.entries(namespace), key: value}},
            self.key_count + (before is None),
            self.byte_size + _byte_size(namespace, key, value) - _byte_size(namespace, key, before),
        )

    def without(self, namespace: str, key: str) -> KvConfigTable:
        """A table without the key; this table if it is not in it."""
        before = self.get(namespace, key)
        if before is None:
            return self
        namespaces = dict(self.namespaces)
        left = {other: value for other, value in namespaces.pop(namespace).items() if other != key}
        if left:
            namespaces[namespace] = left
        return KvConfigTable(namespaces, self.key_count - 1, self.byte_size - _byte_size(namespace, key, before))

    def differences_from(self, before: KvConfigTable) -> list[tuple[str, str, str | None]]:
        """Namespace, key and value of each entry that another table has otherwise; no value: it is not in this one."""
        found: list[tuple[str, str, str | None]] = []
        for namespace in {**before.namespaces, **self.namespaces}:
            entries, entries_before = self.entries(namespace), before.entries(namespace)
            if entries is not entries_before:
                keys = (key for key in {**entries_before, **entries} if entries.get(key) != entries_before.get(key))
                found += [(namespace, key, entries.get(key)) for key in keys]
        return found


EMPTY = KvConfigTable.of({})
"""The configuration of a name server that was never given one."""


def names_after(names: Mapping[str, object], after: str, limit: int) -> list[str]:
    """The next namespaces or keys in sorted order, at most ``limit``; an empty ``after`` starts at the beginning."""
    return sorted(name for name in names if name > after)[:limit]


def _byte_size(namespace: str, key: str, value: str | None) -> int:
    """Bytes that an entry counts for; none if there is none."""
    return 0 if value is None else sum(len(part.encode()) for part in (namespace, key, value))
