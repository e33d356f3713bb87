"""What waits for one watch, beside a plain dictionary, and how much of it one step touches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from namesrv.core import watch
from namesrv.core.model import BrokerKey
from namesrv.core.slices import DROP_SLICE
from namesrv.core.watch import MAX_GONE, PART_TOPICS, Gone, GoneBroker, WaitingTopics
from tests.properties import examples

TOPICS = st.sampled_from([f"t{number}" for number in range(12)])
BROKERS = st.integers(1, 3).map(lambda number: GoneBroker(BrokerKey("cluster", "broker"), f"10.0.0.{number}:1", b""))
GONE = st.lists(BROKERS, max_size=2).map(tuple)
STEPS = st.lists(st.one_of(st.tuples(TOPICS, GONE), st.dictionaries(TOPICS, GONE), st.none()), max_size=40)


@settings(max_examples=examples(100))
@given(STEPS)
def test_topics_wait_once_with_all_that_left_them_whatever_the_parts(
    steps: list[tuple[str, Gone] | dict[str, Gone] | None],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "PART_TOPICS", 3)
        waiting, model = WaitingTopics(), dict[str, Gone]()
        for step in steps:
            if step is None and model:
                topic, gone = waiting.take()
                assert model.pop(topic) == gone
            elif isinstance(step, tuple):
                if not waiting.more_gone(*step):
                    waiting.add(*step)
                model[step[0]] = model.get(step[0], ()) + step[1]
            elif step is not None:
                assert waiting.add_all(step) == len(step.keys() - model.keys())
                model |= {topic: model.get(topic, ()) + gone for topic, gone in step.items()}
            assert len(waiting) == len(model)
        assert {waiting.take()[0] for _ in range(len(waiting))} == model.keys()


def test_no_more_brokers_are_kept_as_gone_than_a_message_names() -> None:
    waiting = WaitingTopics()
    gone = [GoneBroker(BrokerKey("cluster", "broker"), f"host-{number}:1", b"") for number in range(MAX_GONE + 1)]
    waiting.add("t", tuple(gone[:-1]))
    assert waiting.more_gone("t", tuple(gone[-1:]))
    assert waiting.take() == ("t", tuple(gone[1:]))


def test_no_part_grows_beyond_its_bound_and_all_are_dropped_in_slices() -> None:
    waiting = WaitingTopics()
    waiting.add_all({f"t{number}": () for number in range(PART_TOPICS - 1)})
    for number in range(3):
        waiting.add(f"one-{number}", ())
    waiting.add_all({f"u{number}": () for number in range(PART_TOPICS)})
    parts = waiting._parts
    assert [len(part) for part in parts] == [PART_TOPICS, 2, PART_TOPICS]
    left, dropped = sum(map(len, parts)), []
    for _ in waiting.emptied():
        dropped.append(left - sum(map(len, parts)))
        left -= dropped[-1]
    assert left == 0
    assert max(dropped) <= DROP_SLICE
