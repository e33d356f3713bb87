"""Producers that prefer brokers by label."""

from __future__ import annotations

import random

import pytest

from route_client.queues import PublishInfoCache, QueueSelector, publish_info
from route_client.route import TopicRoute, from_wire, to_wire
from route_client.settings import ClientSettings
from tests.support.routes.wire_routes import wire_route

TOPIC = "TopicTest"
LABELS = {"a": {"rack": "r1", "row": "7"}, "b": {"rack": "r2"}, "c": {}}
"""Those of each master; each slave has others."""


def labelled_route(zones: dict[str, str] | None = None) -> TopicRoute:
    wire = wire_route(*LABELS, queues=2, zones=zones)
    for group in wire.broker_datas:
        master, slave = group.broker_addrs
        master.labels.update(LABELS[group.broker_name])
        slave.labels["rack"] = "of-slaves"
    return from_wire(wire)


@pytest.mark.parametrize(
    ("wanted", "groups", "outside"),
    [
        ({}, "abc", False),
        ({"rack": "r1"}, "a", False),
        ({"rack": "r1", "row": "7"}, "a", False),
        ({"rack": "r2", "row": "7"}, "abc", True),
        ({"rack": "r3"}, "abc", True),
        ({"rack": "of-slaves"}, "abc", True),
    ],
)
def test_brokers_with_all_labels_are_taken_or_all_if_none_has_them(
    wanted: dict[str, str], groups: str, outside: bool
) -> None:
    info = PublishInfoCache(ClientSettings(prefer_labels=wanted)).of(TOPIC, labelled_route())
    selector = QueueSelector(random.Random(1))
    assert {selector.select_one_queue(info).broker_name for _ in range(12)} == set(groups)
    assert info.outside_labels is outside


def test_labels_narrow_the_own_zone_and_not_beyond_it() -> None:
    zoned = labelled_route({"a": "zone-1", "b": "zone-2", "c": "zone-2"})
    of_zone = publish_info(TOPIC, zoned, "zone-2", {"rack": "r2"})
    assert {queue.broker_name for queue in of_zone.queues} == {"b"}
    elsewhere = publish_info(TOPIC, zoned, "zone-2", {"rack": "r1"})
    assert {queue.broker_name for queue in elsewhere.queues} == {"b", "c"}
    assert (elsewhere.outside_zone, elsewhere.outside_labels) == (False, True)


def test_the_disk_cache_keeps_labels() -> None:
    assert from_wire(to_wire(labelled_route())) == labelled_route()
