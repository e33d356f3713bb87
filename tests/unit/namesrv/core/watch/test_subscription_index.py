"""The index of subscriptions, compared with a search through all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from namesrv.core.slices import run_steps
from namesrv.core.watch.subscription import Subscription, SubscriptionIndex
from tests.properties import examples

NAMES = ["a", "ab", "abc", "b", "ba"]
SUBSCRIPTIONS = st.builds(
    Subscription,
    st.frozensets(st.sampled_from(NAMES), max_size=3),
    st.lists(st.sampled_from(["", "a", "ab", "abcd"]), max_size=3, unique=True).map(tuple),
)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 3), SUBSCRIPTIONS), max_size=20))
def test_the_index_finds_the_watches_whose_subscription_has_a_topic(steps: list[tuple[int, Subscription]]) -> None:
    index, model = SubscriptionIndex[int](), dict[int, Subscription]()
    for watch, subscription in steps:
        if watch in model:
            run_steps(index.remove(watch, model.pop(watch)))
        else:
            model[watch] = subscription
            run_steps(index.add(watch, subscription))
        for topic in NAMES:
            found = index.watches_of(topic)
            assert sorted(found) == sorted(watch for watch, some in model.items() if some.has(topic))
            assert not found or topic in index.candidates([topic])
            assert not found or topic in index.candidates(NAMES)
        names = {("name", name) for some in model.values() for name in some.topics}
        names |= {("prefix", name) for some in model.values() for name in some.prefixes}
        assert len(index) == len(names)
