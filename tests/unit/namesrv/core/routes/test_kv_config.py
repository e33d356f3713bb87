"""KvConfigTable: what is in it, what it counts, and that it never changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from namesrv.core.model import KvConfigTable

NAMES = st.sampled_from(["a", "b", "ä"])
CHANGES = st.lists(st.tuples(NAMES, NAMES, st.none() | st.sampled_from(["", "v", "wörter"])))


def test_a_change_leaves_the_table_before_it_as_it_was() -> None:
    before = KvConfigTable().with_value("ns", "key", "one")
    before.with_value("ns", "key", "two")
    before.with_value("ns", "other", "two")
    before.without("ns", "key")
    assert before.namespaces == {"ns": {"key": "one"}}


def test_what_changes_nothing_gives_the_same_table() -> None:
    before = KvConfigTable()
    table = before.with_value("ns", "key", "")
    assert table is not before
    assert table.with_value("ns", "key", "") is table
    assert table.without("ns", "other") is table
    assert table.without("other", "key") is table


def test_bytes_are_those_of_utf_8_with_the_namespace_counted_for_each_key() -> None:
    table = KvConfigTable().with_value("ns", "ä", "€").with_value("ns", "b", "")
    assert (table.key_count, table.byte_size) == (2, (2 + 2 + 3) + (2 + 1))


@given(CHANGES)
def test_a_table_made_in_changes_equals_one_made_at_once(changes: list[tuple[str, str, str | None]]) -> None:
    table, expected = KvConfigTable(), dict[str, dict[str, str]]()
    for namespace, key, value in changes:
        if value is None:
            table = table.without(namespace, key)
            expected.get(namespace, {}).pop(key, None)
        else:
            table = table.with_value(namespace, key, value)
            expected.setdefault(namespace, {})[key] = value
        assert table == KvConfigTable.of(expected)
