"""Topics that hundreds of broker groups share: each group has its place among them, found by looking at few."""

from __future__ import annotations

import random

from namesrv.core.edit import _with_queue_data
from namesrv.core.model import BrokerKey, DataVersion, QueueData
from tests.support.core_fleet import Fleet

GROUPS = 40
WIDE = 512


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


def test_a_place_among_hundreds_of_groups_is_found_by_looking_at_a_few() -> None:
    fleet = Fleet()
    interned = fleet.state.index.queue_datas
    parts = [interned.added(BrokerKey("c", f"broker-{number:04}"), (4, 4, 6, 0)) for number in range(WIDE)]
    looked_at: list[bytes] = []

    def find(fragment: bytes) -> QueueData:
        looked_at.append(fragment)
        return interned.of(fragment)

    queues = tuple(part.fragment for part in parts[:-1])
    for part in (parts[0], parts[WIDE // 2], parts[-1]):
        assert part.fragment in _with_queue_data(queues, part, find)
    assert len(looked_at) < 3 * 2 * WIDE.bit_length()
