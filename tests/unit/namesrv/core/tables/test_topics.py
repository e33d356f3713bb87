"""The topic table compared with a dictionary: changes merged with breaths, and copies that stay as they were."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from namesrv.app.worker import GivenUp
from namesrv.core import tables
from namesrv.core.model import TopicQueues
from namesrv.core.slices import with_breaths
from namesrv.core.tables import MERGE_SLICE, SHARDS, TopicTable, TopicView
from tests.support.breaths import AtBreath, breathing, breaths_of, give_up, short_breaths

NAMES = [f"topic-{number}" for number in range(12)]


def publish(table: TopicTable, changed: dict[str, TopicQueues | None]) -> None:
    came = sum(1 for name, queues in changed.items() if queues is not None and name not in table)
    went = sum(1 for name, queues in changed.items() if queues is None and name in table)
    table.publish(changed, came, went)


def filled(count: int) -> TopicTable:
    table = TopicTable()
    publish(table, {f"t-{number}": (b"%d" % number,) for number in range(count)})
    table.settle()
    return table


class TopicsBesideADictionary(RuleBasedStateMachine):
    """Changes, parts of merges, and copies in any order. Topics share shards, as there are few."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(tables, "SHARDS", 4)
        self.patch.setattr(tables, "SHARD_MASK", 3)
        self.table, self.expected = TopicTable(), dict[str, TopicQueues]()
        self.copies: list[tuple[TopicView, dict[str, TopicQueues]]] = []

    def teardown(self) -> None:
        self.patch.undo()

    @rule(changes=st.dictionaries(st.sampled_from(NAMES), st.none() | st.binary(max_size=2), min_size=1))
    def change(self, changes: dict[str, bytes | None]) -> None:
        self.table.settle()
        publish(self.table, {name: None if queue is None else (queue,) for name, queue in changes.items()})
        for name, queue in changes.items():
            self.expected.pop(name, None)
            if queue is not None:
                self.expected[name] = (queue,)

    @rule()
    def settle(self) -> None:
        with short_breaths(), breathing(self.it_is_the_dictionary):
            self.table.settle()

    @rule(breaths=st.integers(0, 5))
    def begin_to_settle(self, breaths: int) -> None:
        with suppress(GivenUp), short_breaths(), breathing(AtBreath(breaths, give_up)):
            self.table.settle()

    @precondition(lambda self: self.table.is_settled)
    @rule()
    def copy(self) -> None:
        self.copies.append((self.table.copy(), dict(self.expected)))

    @rule()
    def let_the_first_copy_go(self) -> None:
        if self.copies:
            with_breaths(self.copies.pop(0)[0].let_go())

    @invariant()
    def it_is_the_dictionary(self) -> None:
        assert len(self.table) == len(self.expected)
        assert {name: self.table.get(name) for name in NAMES if name in self.table} == self.expected

    @invariant()
    def copies_stay(self) -> None:
        for view, expected in self.copies:
            assert dict(view.rows()) == dict(view) == expected
            assert sorted(with_breaths(view.names())) == sorted(expected)
            assert len(view) == len(expected)


TestTopicsBesideADictionary = TopicsBesideADictionary.TestCase


def test_a_copy_takes_no_row_whatever_their_number() -> None:
    table = filled(10_000)
    view = table.copy()
    assert all(mine is its for mine, its in zip(table._shards, view._shards, strict=True))


def test_a_change_after_a_copy_copies_its_shards_with_breaths() -> None:
    table = filled(100_000)
    view = table.copy()
    publish(table, {"t-1": None})
    table.settle()
    assert sum(mine is not its for mine, its in zip(table._shards, view._shards, strict=True)) == 1
    assert view["t-1"] == (b"1",)
    publish(table, {f"t-{number}": (b"new",) for number in range(2, 100_000, 4)})
    breaths = breaths_of(table.settle)
    assert breaths >= SHARDS


def test_what_only_a_copy_holds_is_freed_in_slices() -> None:
    table = filled(20_000)
    view = table.copy()
    publish(table, {f"t-{number}": (b"new",) for number in range(20_000)})
    table.settle()
    left = [sum(map(len, view._shards)) for _ in view.let_go()]
    freed = [before - after for before, after in zip([20_000, *left], left, strict=False)]
    assert max(freed) <= MERGE_SLICE + max(map(len, table._shards))
    assert not view._shards


def test_names_are_gathered_in_slices() -> None:
    table = filled(20_000)
    names = table.copy().names()
    assert sum(1 for _ in names) >= 20_000 // (MERGE_SLICE + 100)
