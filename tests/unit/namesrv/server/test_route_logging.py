"""Log lines that an operator must hear of without asking: of the mass-loss guard, and of what does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from namesrv.app.event_log import RegistrationLog, listen_for_mass_loss, listen_for_names_in_two_clusters
from namesrv.core.model import BrokerKey, DataVersion, Registration
from tests.support.core_fleet import SMALL_FLEETS, A, B, Fleet


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(replace(SMALL_FLEETS, mass_loss_hold_seconds=90.0))


def channels_of(fleet: Fleet, count: int) -> list[str]:
    """One channel for each of so many brokers, and the guard's log line."""
    listen_for_mass_loss(fleet.state)
    channels = [fleet.heartbeats.open_channel() for _ in range(count)]
    for number, channel in enumerate(channels):
        fleet.register(f"10.0.0.{number}:10911", name=f"broker-{number}", topics=[f"T{number}"], channel_id=channel)
    return channels


def told(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["event"] == "mass_loss_guard"]


def test_a_fleet_that_is_held_is_one_warning_with_how_many_the_first_of_them_and_for_how_long(fleet: Fleet) -> None:
    channels = channels_of(fleet, 1)
    for number in range(1, 6):
        fleet.register(f"10.0.0.{number}:10911", name=f"broker-{number}", channel_id=channels[0])
    with capture_logs() as logs:
        fleet.end_channel(channels[0])
    assert told(logs) == [
        {
            "event": "mass_loss_guard",
            "log_level": "warning",
            "brokers": 6,
            "brought_back": 0,
            "first": "broker-0 (10.0.0.0:10911, id 0) of DefaultCluster, "
            "broker-1 (10.0.0.1:10911, id 0) of DefaultCluster, "
            "broker-2 (10.0.0.2:10911, id 0) of DefaultCluster",
            "hold_seconds": 90.0,
            "revision": fleet.state.revision,
        }
    ]


def test_those_that_the_guard_brings_back_and_those_that_it_holds_afterwards_are_told_too(fleet: Fleet) -> None:
    channels = channels_of(fleet, 5)
    with capture_logs() as logs:
        for channel in channels[:2]:
            fleet.end_channel(channel)
        assert told(logs) == []
        for channel in channels[2:4]:
            fleet.end_channel(channel)
    assert [(line["brokers"], line["brought_back"]) for line in told(logs)] == [(3, 2), (1, 0)]
    assert "broker-0 (" in told(logs)[0]["first"]
    assert told(logs)[1]["first"].startswith("broker-3 (")


def test_a_group_of_a_name_that_another_cluster_has_is_told_once_each_time_it_comes(fleet: Fleet) -> None:
    listen_for_names_in_two_clusters(fleet.state)
    with capture_logs() as logs:
        fleet.register(A, cluster="c1")
        fleet.register(B, cluster="c2")
        fleet.register(B, cluster="c2", topics=["Other"], version=DataVersion(2, 2))
        fleet.register("127.0.0.1:30911", cluster="c2", name="broker-b")
    assert logs == [
        {
            "event": "broker_name_in_two_clusters",
            "log_level": "warning",
            "broker": "broker-a",
            "first": "c1",
            "cluster": "c2",
            "revision": 2,
        }
    ]
    assert list(fleet.state.index.clusters_by_name["broker-a"]) == ["c1", "c2"]
    fleet.unregister(A, cluster="c1")
    assert list(fleet.state.index.clusters_by_name["broker-a"]) == ["c2"]


def test_topics_that_are_passed_over_are_one_warning_with_what_is_wrong_with_the_first() -> None:
    registration = Registration(BrokerKey("c1", "broker-a"), 0, A, DataVersion(1, 1), {}, topic_by_topic=True)
    with capture_logs() as logs:
        RegistrationLog().topics_skipped(registration, 12, {"a\n": "is odd", "T": "has a perm that is no number"})
    assert logs == [
        {
            "event": "topics_skipped",
            "log_level": "warning",
            "cluster": "c1",
            "broker": "broker-a",
            "addr": A,
            "skipped": 12,
            "first": "'a\\n' is odd; 'T' has a perm that is no number",
            "not_told": 0,
        }
    ]
