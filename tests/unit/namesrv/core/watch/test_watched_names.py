"""Who watches which name, beside a plain dictionary, and how large a table becomes that one step may have to grow."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from namesrv.core.watch import PARTS, RouteWatch, Subscription, WatchedNames
from tests.properties import examples

WATCHES = [RouteWatch(lambda: None, 0, subscription=Subscription(frozenset())) for _ in range(3)]
NAMES = st.sampled_from([f"t{number}" for number in range(8)])
STEPS = st.lists(st.tuples(st.booleans(), NAMES, st.sampled_from(WATCHES)), max_size=40)


@settings(max_examples=examples(100))
@given(STEPS)
def test_a_name_is_there_as_long_as_somebody_watches_it(steps: list[tuple[bool, str, RouteWatch]]) -> None:
    watched = WatchedNames()
    model: dict[str, dict[RouteWatch, None]] = {}
    for is_added, name, watcher in steps:
        if is_added:
            watched.add(name, watcher)
            model.setdefault(name, {})[watcher] = None
        else:
            watched.remove(name, watcher)
            model.get(name, {}).pop(watcher, None)
        model = {name: watchers for name, watchers in model.items() if watchers}
        assert watched.watchers(name) == tuple(model.get(name, ()))
        assert (name in watched) == (name in model)
        assert sorted(watched.names()) == sorted(model)
        assert len(watched) == len(model)


def test_names_are_spread_so_that_growing_a_table_never_costs_more_than_a_small_part_of_them() -> None:
    watched = WatchedNames()
    for number in range(100_000):
        watched.add(f"topic-{number}", WATCHES[0])
    assert max(map(len, watched._parts)) < 2 * 100_000 / PARTS
