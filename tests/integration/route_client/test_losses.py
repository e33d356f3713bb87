"""A route is not lost to an empty answer: what is held back, taken at once, and read from disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from namesrv_api.v1 import route_data_pb2

from route_client import (
    ClientSettings,
    NoNamesrvAnsweredError,
    RouteClient,
    Stale,
    TopicNotFoundError,
)
from tests.integration.route_client.sessions import QUICK, TOPIC, gone, shows, watching
from tests.support.fakes.watched_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually
from tests.support.routes.wire_routes import route, wire_removal, wire_route


def test_an_empty_answer_is_held_back_told_and_taken_after_its_time(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), ClientSettings(hold_seconds=0.3), topics=[TOPIC]) as client:
        watching(client, fake)
        changes = client.changes()
        fake.put(TOPIC, None, (wire_removal(route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED),))
        held = changes.take(TIMEOUT)
        assert held is not None
        assert (held.after.stale, held.after.route) == (Stale.HELD, route())
        taken = changes.take(TIMEOUT)
        assert taken is not None
        assert taken.after.route is None
        counters = client.status().counters
        assert (counters.held, counters.holds_expired) == (1, 1)


def test_a_restarted_name_server_that_knows_nothing_yet_takes_no_route_away(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.stop()
        eventually(lambda: client.route(TOPIC).stale, lambda stale: stale is Stale.DISCONNECTED)
        fake.epoch, fake.revision, fake.told = "0002-a", 0, {}
        fake.start()
        shows(client, stale=Stale.HELD)
        assert client.status().held_topics == (TOPIC,)
        assert client.select_one_queue(TOPIC).broker_name == "broker-a"
        fake.put(TOPIC, wire_route())
        shows(client)
        assert client.status().counters.holds_averted == 1


def test_a_loss_for_a_reason_is_taken_at_once(fake: FakeNameServer) -> None:
    reasons = [wire_removal(route_data_pb2.REMOVAL_REASON_UNREGISTERED, broker_id=id_) for id_ in (0, 1)]
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.put(TOPIC, None, tuple(reasons))
        gone(client)
        with pytest.raises(TopicNotFoundError):
            client.route(TOPIC)


def test_polled_answers_carry_no_reasons_so_they_are_held_back(fake: FakeNameServer) -> None:
    fake.watches = False
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        fake.put(TOPIC, None)
        shows(client, stale=Stale.HELD)


def test_without_a_name_server_routes_come_from_disk_and_are_fresh_once_one_answers(
    fake: FakeNameServer, tmp_path: Path
) -> None:
    settings = ClientSettings(cache_dir=tmp_path, timeout_seconds=5)
    fake.put("Other", wire_route("broker-b"))
    with RouteClient(str(fake.endpoint), settings, topics=[TOPIC, "Other"]):
        pass  # closing saves
    fake.stop()
    with RouteClient(str(fake.endpoint), settings, topics=[TOPIC]) as client:
        known = client.route(TOPIC)
        assert (known.route, known.stale, known.origin) == (route(), Stale.FROM_DISK, None)
        assert client.route("Other").stale is Stale.FROM_DISK
        assert client.select_one_queue(TOPIC).broker_name == "broker-a"
        with pytest.raises(NoNamesrvAnsweredError):
            client.route("never-seen")
        fake.start()
        shows(client)


def test_a_corrupt_cache_file_is_refused_and_counted(fake: FakeNameServer, tmp_path: Path) -> None:
    settings = ClientSettings(cache_dir=tmp_path, timeout_seconds=5)
    with RouteClient(str(fake.endpoint), settings, topics=[TOPIC]):
        pass
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    fake.stop()
    with RouteClient(str(fake.endpoint), settings) as client:
        with pytest.raises(NoNamesrvAnsweredError):
            client.route(TOPIC)
        assert client.status().cache_files_refused == 1


def test_a_topic_that_really_went_is_not_on_disk_any_more(fake: FakeNameServer, tmp_path: Path) -> None:
    reasons = [wire_removal(route_data_pb2.REMOVAL_REASON_DELETED_BY_OPERATOR, broker_id=None)]
    with RouteClient(str(fake.endpoint), ClientSettings(cache_dir=tmp_path), topics=[TOPIC]) as client:
        watching(client, fake)
        eventually(lambda: list(tmp_path.glob("*.route")))
        fake.put(TOPIC, None, tuple(reasons))
        eventually(lambda: list(tmp_path.iterdir()), lambda files: not files)
        gone(client)
