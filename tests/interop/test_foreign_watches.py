"""Clients written in other languages watch routes of a real name server."""

from __future__ import annotations

import re

import pytest
from namesrv_api.v1.registration_service_pb2 import UnregisterBrokerRequest
from namesrv_api.v1.route_data_pb2 import TopicRouteData

from tests.interop.programs import INSTALL_SECONDS, Programs, as_json
from tests.interop.watch_lines import Bookmark
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import identity, registration

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)


def register(client: Client, topic: str, name: str, port: int) -> str:
    """Registers a broker with one topic; returns the revision after it as JSON has it."""
    request = registration([topic], identity(f"127.0.0.1:{port}", name=name))
    return str(client.registration.RegisterBroker(request, timeout=Client.TIMEOUT).header.revision)


def route_of(client: Client, topic: str) -> dict[str, object]:
    """A topic's route as JSON."""
    route = client.route(topic)
    assert isinstance(route, TopicRouteData)
    return as_json(route)


def test_a_watch_is_told_of_the_routes_of_each_change_and_after_a_break_of_what_it_missed_and_why(
    programs: Programs, namesrv: NamesrvProcess, client: Client
) -> None:
    register(client, "order-1", "broker-a", 10911)
    with programs.start("watch", str(namesrv.endpoint), "order-*", "later") as watch:
        first = Bookmark.next_of(watch)
        assert first.changes == {
            "order-1": {"topic": "order-1", "route": route_of(client, "order-1"), "removals": []},
            "later": {"topic": "later", "removals": []},
        }
        revision = register(client, "later", "broker-b", 20911)
        second = Bookmark.next_of(watch)
        assert second.changes == {"later": {"topic": "later", "route": route_of(client, "later"), "removals": []}}
        assert (second.epoch, second.revision) == (first.epoch, revision)
    gone = UnregisterBrokerRequest(broker=identity())
    assert client.registration.UnregisterBroker(gone, timeout=Client.TIMEOUT).removed
    with programs.start("watch", "--after", second.point, str(namesrv.endpoint), "order-*", "later") as watch:
        removal = {
            "cluster_name": "DefaultCluster",
            "broker_name": "broker-a",
            "broker_id": "0",
            "broker_addr": "127.0.0.1:10911",
            "reason": "REMOVAL_REASON_UNREGISTERED",
        }
        assert Bookmark.next_of(watch).changes == {"order-1": {"topic": "order-1", "removals": [removal]}}


def test_a_topic_joins_an_open_watch(programs: Programs, namesrv: NamesrvProcess, client: Client) -> None:
    register(client, "order-1", "broker-a", 10911)
    with programs.start("watch", "--add", "order-1", str(namesrv.endpoint), "order-2") as watch:
        assert Bookmark.next_of(watch).changes.keys() == {"order-2"}
        joined = Bookmark.next_of(watch).changes
        assert joined == {"order-1": {"topic": "order-1", "route": route_of(client, "order-1"), "removals": []}}
        register(client, "order-1", "broker-b", 20911)
        assert Bookmark.next_of(watch).changes.keys() == {"order-1"}


def test_a_watch_is_told_by_reason_that_its_name_server_ends_or_is_another_than_it_resumes_from(
    programs: Programs, namesrv: NamesrvProcess
) -> None:
    with programs.start("watch", str(namesrv.endpoint), "TopicTest") as watch:
        bookmark = Bookmark.next_of(watch)
        earlier = f"{'0' * len(bookmark.epoch)}/{bookmark.revision}"
        with programs.start("watch", "--after", earlier, str(namesrv.endpoint), "TopicTest") as resumed:
            code, error = resumed.end()
        assert (code, bool(re.match(r"\w+ EPOCH_CHANGED: ", error))) == (1, True), error
        assert namesrv.terminate() == 0
        code, error = watch.end()
    assert (code, bool(re.match(r"(?i)unavailable SHUTTING_DOWN: ", error))) == (1, True), error
