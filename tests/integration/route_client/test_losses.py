"""A route is not lost to an empty answer: what is held back, taken at once, and read from disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from namesrv_api.v1 import route_data_pb2

from route_client import ClientSettings, NoNamesrvAnsweredError, RouteClient, Stale
from tests.integration.route_client.sessions import TOPIC, gone, shows, watching
from tests.support.fakes.watched_name_server import FakeNameServer
from tests.support.programs.processes import eventually
from tests.support.routes.wire_routes import route, wire_removal, wire_route


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


def test_a_topic_that_really_went_is_not_on_disk_any_more(fake: FakeNameServer, tmp_path: Path) -> None:
    reasons = [wire_removal(route_data_pb2.REMOVAL_REASON_DELETED_BY_OPERATOR, broker_id=None)]
    with RouteClient(str(fake.endpoint), ClientSettings(cache_dir=tmp_path), topics=[TOPIC]) as client:
        watching(client, fake)
        eventually(lambda: list(tmp_path.glob("*.route")))
        fake.put(TOPIC, None, tuple(reasons))
        eventually(lambda: list(tmp_path.iterdir()), lambda files: not files)
        gone(client)
