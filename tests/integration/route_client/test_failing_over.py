"""What a client does when a name server goes, hangs, restarts or is not ready, and what it reads from disk."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import grpc
import pytest
from namesrv_api.v1 import route_data_pb2

from route_client import ClientSettings, NoNamesrvAnsweredError, RouteClient, Stale
from route_client.watch_stream import WatchStream
from tests.integration.route_client.sessions import QUICK, TOPIC, first_is, shows, watching
from tests.support.fakes.watched_name_server import EXPIRED, FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually
from tests.support.routes.wire_routes import route, wire_removal, wire_route


def test_a_watch_that_ends_as_cancelled_is_opened_again(fake: FakeNameServer) -> None:
    fake.refusals = [(grpc.StatusCode.CANCELLED, "CANCELLED", None)]
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        assert "CANCELLED" in client.status().last_error


def test_a_defect_of_the_client_does_not_end_the_watching(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: WatchStream, response: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("a defect")

    monkeypatch.setattr(WatchStream, "take", fails)
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        assert "RuntimeError('a defect')" in client.status().last_error
    assert "a defect of the client" in caplog.text


def test_a_revision_that_a_name_server_has_not_reached_is_resumed_from_later(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.refusals = [(grpc.StatusCode.OUT_OF_RANGE, "REVISION_NOT_REACHED", 0.05)]
        fake.cut_watches()
        _, refused, resumed = eventually(lambda: fake.watch_requests, lambda requests: len(requests) == 3)
        watching(client, fake)
    assert refused.HasField("resume_after")
    assert resumed.resume_after == refused.resume_after


def test_a_name_server_that_ends_watches_as_they_begin_is_left(fake: FakeNameServer) -> None:
    with FakeNameServer(name="ns-b") as other:
        other.put(TOPIC, wire_route("broker-a"))
        fake.refusals = [EXPIRED]
        endpoints, rng = first_is(fake, str(other.endpoint))
        with RouteClient(endpoints, QUICK, topics=[TOPIC], rng=rng) as client:
            watching(client, other)
            assert "WATCH_EXPIRED" in client.status().last_error


def test_a_name_server_that_is_not_ready_is_passed_over(fake: FakeNameServer) -> None:
    with FakeNameServer(name="ns-b") as other:
        fake.serve(ready=False)
        endpoints, rng = first_is(fake, str(other.endpoint))
        with RouteClient(endpoints, QUICK, rng=rng) as client:
            watching(client, other)
            assert "says that it is not ready" in client.status().last_error


def test_of_name_servers_that_are_not_ready_the_first_that_becomes_so_is_found(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route_client.keeper.UNREADY_SECONDS", 0.1)
    with FakeNameServer(name="ns-b") as other:
        fakes = {server.endpoint: server for server in (fake, other)}
        for server in fakes.values():
            server.serve(ready=False)
        with RouteClient([str(endpoint) for endpoint in fakes], QUICK, topics=[TOPIC]) as client:
            status = eventually(client.status, lambda status: status.endpoint is not None)
            (waiting,) = (server for endpoint, server in fakes.items() if endpoint != status.endpoint)
            waiting.serve(ready=True)
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == waiting.endpoint)


@pytest.mark.parametrize("watches", [True, False])
def test_a_name_server_that_is_not_ready_any_more_is_left(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch, watches: bool
) -> None:
    monkeypatch.setattr("route_client.keeper.RESYNC_SECONDS", 0.1)
    with FakeNameServer(name="ns-b") as other:
        fake.watches = other.watches = watches
        other.put(TOPIC, wire_route("broker-b"))
        endpoints, rng = first_is(fake, str(other.endpoint))
        with RouteClient(endpoints, QUICK, topics=[TOPIC], rng=rng) as client:
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == fake.endpoint)
            fake.serve(ready=False)
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == other.endpoint)
            shows(client, "broker-b")


@pytest.mark.parametrize("timeout_seconds", [0.5, TIMEOUT])  # the call ends with an error, or is hedged
def test_a_name_server_that_lets_a_lookup_wait_is_asked_last(fake: FakeNameServer, timeout_seconds: float) -> None:
    with FakeNameServer(name="ns-b") as hanging:
        hanging.hold_lookups = threading.Event()
        endpoints, rng = first_is(hanging, str(fake.endpoint))
        with RouteClient(endpoints, ClientSettings(timeout_seconds=timeout_seconds), rng=rng) as client:
            assert client.route(TOPIC).route == route()
            assert client._chooser.in_order() == [fake.endpoint, hanging.endpoint]
            hanging.hold_lookups.set()


def test_routes_stay_confirmed_while_the_second_name_server_is_asked_after_the_first_has_failed(
    fake: FakeNameServer,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoints, rng = first_is(fake, f"127.0.0.1:{silent.getsockname()[1]}")
        with RouteClient(endpoints, ClientSettings(timeout_seconds=TIMEOUT), topics=[TOPIC], rng=rng) as client:
            watching(client, fake)
            fake.stop()
            eventually(client.status, lambda status: status.mode == "disconnected")
            assert client.route(TOPIC).stale is None


def test_without_a_name_server_routes_come_from_disk_until_one_answers(fake: FakeNameServer, tmp_path: Path) -> None:
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
