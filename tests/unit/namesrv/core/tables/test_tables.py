"""Pieces framed by hand are what generated code encodes, and the map of topics is a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2

from namesrv.app.writer import INLINE_TOPICS
from namesrv.core import tables
from namesrv.core.model import BrokerKey, DataVersion, Registration, StaticMapping
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.tables import QUEUES_LIKE_A_QUEUE_DATA, UNUSED_PER_BROKER, PersistentMap
from tests.support.core_fleet import CLUSTER, A, Fleet
from tests.support.state_changes import apply_now
from tests.support.yield_points import yield_points_of
from tests.unit.namesrv.reference_operators import mapping_message

LARGE = 2_501


def mapping(queues: int) -> StaticMapping:
    return StaticMapping("__global__", queues, 7, True, tuple((queue, 2 * queue) for queue in range(queues)))


def registration(*mappings: StaticMapping, topic_by_topic: bool = True) -> Registration:
    topics = {f"T{number}": one for number, one in enumerate(mappings)}
    return Registration(
        broker=BrokerKey(CLUSTER, "broker-a"),
        broker_id=0,
        broker_addr=A,
        data_version=DataVersion(1, 1),
        topic_configs={name: (8, 8, 6, 0) if topic_by_topic else (8, 8, 6, 0, one) for name, one in topics.items()},
        topic_by_topic=topic_by_topic,
        mappings=topics if topic_by_topic else {},
    )


@pytest.mark.parametrize("topic_by_topic", [False, True])
def test_a_registration_of_one_static_topic_is_as_large_as_its_mapping(fleet: Fleet, topic_by_topic: bool) -> None:
    small, large = (registration(mapping(queues), topic_by_topic=topic_by_topic) for queues in (8, 10_000))
    assert BrokerRegistration(fleet.state, small).topics == 1
    assert BrokerRegistration(fleet.state, large).topics > INLINE_TOPICS


@given(st.integers(0, 2**64 - 1))
def test_varints_are_protobufs(value: int) -> None:
    message = route_data_pb2.NamesrvHeader(revision=value - 2**64 if value >= 2**63 else value)
    assert message.SerializeToString() == bytes([3 << 3]) + tables.varint(value)


@example(length=127, cut=0)
@example(length=128, cut=0)
@example(length=(1 << 14) - 1, cut=0)
@example(length=1 << 14, cut=0)
@given(length=st.integers(0, 40_000), cut=st.integers(0, 300))
def test_a_frame_of_parts_is_a_field(length: int, cut: int) -> None:
    text = "x" * length
    expected = route_data_pb2.TopicRouteData(order_topic_conf=text).SerializeToString()
    number = route_data_pb2.TopicRouteData.ORDER_TOPIC_CONF_FIELD_NUMBER
    assert tables.frame(number, text[:cut].encode(), text[cut:].encode()) == expected


@pytest.mark.parametrize("queues", [0, 1, LARGE])
def test_a_mapping_in_parts_is_encoded_as_in_one(queues: int) -> None:
    message = route_data_pb2.QueueData(mapping=mapping_message(mapping(queues)))
    assert tables.mapping_field(mapping(queues)) == message.SerializeToString()


def test_a_broker_whose_mappings_change_over_and_over_does_not_grow_memory(fleet: Fleet) -> None:
    large, table = 40_000, fleet.state.index.queue_datas
    held = []
    for shift in range(30):
        moved = mapping(large)._replace(epoch=shift)
        apply_now(BrokerRegistration(fleet.state, registration(moved, mapping(1))))
        interned = table.of_group(BrokerKey(CLUSTER, "broker-a")).values()
        held.append(sum(len(queue_data.mapping.queue_ids) for queue_data in interned if queue_data.mapping))
    assert max(held) <= UNUSED_PER_BROKER * QUEUES_LIKE_A_QUEUE_DATA + 3 * (large + 1)
    route = fleet.route("T0")
    assert route is not None
    assert route.queue_datas[0].mapping.epoch == 29
    fleet.unregister()
    assert (table.weights, table.mapped) == ({}, set())


# The map of topics.

NAMES = [f"topic-{number}" for number in range(12)]
CHANGES = st.lists(st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 2)), max_size=10)


@contextmanager
def small_chunks() -> Iterator[None]:
    """Spreads few names over several chunks, and makes a map sparse soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "CHUNK", 3)
        patch.setattr(tables, "SPARE", 0)
        yield


@given(changes=CHANGES)
def test_each_changed_copy_is_a_dictionary_and_stays_so(changes: list[dict[str, int | None]]) -> None:
    with small_chunks():
        copies, expected = [PersistentMap[str, int]()], [dict[str, int]()]
        for change in changes:
            rows = {**expected[-1], **change}
            expected.append({name: value for name, value in rows.items() if value is not None})
            copies.append(copies[-1].changed(change).compacted())
            assert not copies[-1].is_sparse
        for copy, held in zip(copies, expected, strict=True):
            assert dict(copy.rows()) == dict(copy) == held
            assert len(copy) == len(held)
            assert {name: copy.get(name) for name in NAMES} == {name: held.get(name) for name in NAMES}
            assert [name for name in NAMES if name in copy] == [name for name in NAMES if name in held]
    versions = [(copy.names_version, held.keys()) for copy, held in zip(copies, expected, strict=True)]
    assert all((one == next_one) is (names == after) for (one, names), (next_one, after) in pairwise(versions))


def test_a_change_copies_the_chunks_that_it_touches_with_yield_points() -> None:
    rows = PersistentMap[str, int]().changed({f"t-{number}": number for number in range(10_000)})
    after = rows.changed({"t-1": None})
    assert sum(mine is not its for mine, its in zip(rows.chunks, after.chunks, strict=True)) == 1
    assert yield_points_of(lambda: rows.changed({f"t-{number}": 0 for number in range(0, 10_000, 2)})) >= 100
