"""Topics that hundreds of broker groups share: each group has its place among them, found by looking at few."""

from __future__ import annotations

import random

from namesrv.core.model import DataVersion
from tests.support.core_fleet import Fleet

GROUPS = 40


def names_and_queues(fleet: Fleet) -> list[tuple[str, int]]:
    """Groups of the topic and their queues, in the order of the route."""
    route = fleet.route()
    assert route is not None
    return [(queues.broker_name, queues.read_queue_nums) for queues in route.queue_datas]


def test_groups_that_come_change_stay_and_go_in_any_order_are_in_their_order() -> None:
    fleet, numbers = Fleet(), list(range(GROUPS))
    expected: dict[str, int] = {}
    for counter, queues in enumerate((4, 4, 8), 1):  # they come, stay as they are, change
        random.Random(counter).shuffle(numbers)
        for number in numbers:
            name = f"broker-{number:02}"
            topic = ("TopicTest", (queues, queues, 6, 0))
            fleet.register(f"10.0.0.{number}:1", topics=[topic], name=name, version=DataVersion(1_000, counter))
            expected[name] = queues
            assert names_and_queues(fleet) == sorted(expected.items())
    for number in numbers[: GROUPS // 2]:
        fleet.unregister(f"10.0.0.{number}:1", name=f"broker-{number:02}")
        del expected[f"broker-{number:02}"]
        assert names_and_queues(fleet) == sorted(expected.items())
