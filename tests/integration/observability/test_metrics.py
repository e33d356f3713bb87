"""What programs tell Prometheus, as docs/metrics.md has it, and who asks whether they are alive and ready."""

from __future__ import annotations

import itertools
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namesrv_api.v1 import route_service_pb2
from prometheus_client.parser import text_string_to_metric_families

from namesrv_common.client.channels import ClientFiles, ClientSecurity, open_channel
from namesrv_common.endpoints import Endpoint
from namesrv_common.server import metrics_http
from namesrv_common.server.metrics_http import MAX_REQUEST_BYTES, MetricsServer, metrics_registry
from tests.support import metrics_page
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent, AgentClient
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import registration
from tests.support.secured.fleet import Place, connected

PACKAGE = "namesrv_api.v1"
METRICS = ("--metrics-listen", "127.0.0.1:0")
PAGE = Path(__file__).parents[3] / "docs/metrics.md"
Described = tuple[str, frozenset[str]]
"""Kind and labels."""


def get(namesrv: NamesrvProcess, path: str) -> tuple[int, str]:
    return metrics_page.get(namesrv.wait_for("namesrv_started")["metrics"], path)


def samples(namesrv: NamesrvProcess) -> dict[tuple[str, ...], float]:
    return metrics_page.samples(namesrv.wait_for("namesrv_started")["metrics"])


def test_a_name_server_that_warms_up_is_alive_and_not_ready(tmp_path: Path) -> None:
    flags = (*METRICS, "--data-dir", str(tmp_path), "--warm-up-millis", "3600000")
    with NamesrvProcess(*flags) as namesrv:
        assert get(namesrv, "/healthz") == (200, "ok\n")
        assert get(namesrv, "/readyz") == (503, "warming: without a snapshot file, brokers may be missing\n")
        assert get(namesrv, "/")[0] == 404


def exposed(endpoint: Any) -> dict[str, Described]:
    """Kind and labels of each metric, by the name of its samples; a histogram has its own."""
    _, text = metrics_page.get(endpoint, "/metrics")
    families = list(text_string_to_metric_families(text))
    found = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = (family.type, frozenset(labels))
    return found


def documented(*prefixes: str) -> dict[str, Described]:
    """The same from the tables of the page: name, kind, labels, what it is. Only of names that begin so."""
    rows = re.findall(r"^\| (`.+?`) \| (\w+) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for names, kind, labels in rows
        for name in re.findall(r"`(\w+)`", names)
        if name.startswith(prefixes)
    }


def test_a_name_server_counts_and_has_just_the_metrics_of_the_page(place: Place, tmp_path: Path) -> None:
    flags = (
        *(*METRICS, "--remoting-listen", "127.0.0.1:0"),
        *("--data-dir", str(tmp_path / "data"), "--snapshot-interval-millis", "50"),
    )
    with (
        NamesrvProcess(*flags, *place.flags("TLS", with_permits=False)) as namesrv,
        connected(namesrv.endpoint, place.files("TLS", None)) as client,
    ):
        register = client.registration.RegisterBroker
        watched = route_service_pb2.WatchTopicRoutesRequest(topics=["TopicTest"])
        watch: Any = client.routes.WatchTopicRoutes(iter([watched]))
        next(watch)
        channel = client.open_channel()
        for _ in range(2):
            register(registration(channel_id=channel.id), timeout=client.TIMEOUT)
        client.failure(f"/{PACKAGE}.RegistrationService/RegisterBroker", registration(channel_id="gone"))
        request = route_service_pb2.GetTopicRouteRequest(topic="Nothing")
        client.failure(f"/{PACKAGE}.RouteService/GetTopicRoute", request)
        client.failure(f"/{PACKAGE}.RouteService/NoSuchCall", b"")
        method = f"{PACKAGE}.RouteService/GetTopicRoute"
        ended = ("grpc_server_call_duration_seconds_count", method, "NOT_FOUND")
        # A call is counted as ended when its answer has left.
        seen = eventually(lambda: samples(namesrv), lambda seen: seen.get(ended) == 1)
        assert (seen["namesrv_live_brokers",], seen["namesrv_topics",], seen["namesrv_warm",]) == (1, 1, 1)
        assert seen["namesrv_changes_total", "RegisterBroker"] == 1
        assert (seen["namesrv_topics_skipped_total",], seen["namesrv_duplicate_group_names",]) == (0, 0)
        kinds = ("changed", "unchanged", "refused")
        assert [seen["namesrv_registrations_total", "full", result] for result in kinds] == [1, 1, 1]
        assert seen["grpc_server_call_started_total", method] == 1
        registered = f"{PACKAGE}.RegistrationService/RegisterBroker"
        assert seen["grpc_server_call_duration_seconds_count", registered, "OK"] == 2
        assert seen["process_open_fds",] > 0
        labels = {label for series in seen for label in series}
        names = ("NoSuchCall", "Nothing", "TopicTest", "broker-a", "127.0.0.1")
        assert not [label for label in labels for name in names if name in label], "callers make series"
        # A watch that is just sending takes a change along, and no time is counted for it.
        counters = itertools.count(2)

        def after_a_change() -> dict[tuple[str, ...], float]:
            number = next(counters)
            request = registration(counter=number, channel_id=channel.id)
            request.topic_configs[0].perm = 6 - 2 * (number % 2)
            register(request, timeout=client.TIMEOUT)
            return samples(namesrv)

        eventually(after_a_change, lambda now: now["namesrv_watch_lag_seconds_count",] > 0)
        watch.cancel()
        channel.close()
        eventually(lambda: samples(namesrv).get(("namesrv_removals_total", "CHANNEL_CLOSED")), lambda count: count == 1)
        assert get(namesrv, "/readyz") == get(namesrv, "/healthz") == (200, "ok\n")
        started = namesrv.wait_for("namesrv_started")
        tls = ssl.create_default_context(cafile=place.authority.path)
        tls.check_hostname = False  # as RocketMQ's clients
        with RemotingClient(str(started["remoting"]), tls) as of_rocketmq:
            of_rocketmq.ask(206)
        listen = started["metrics"]
        metrics = eventually(lambda: exposed(listen), lambda now: "namesrv_snapshot_age_seconds" in now)
    assert metrics == documented("namesrv_", "grpc_server_", "process_", "python_")


def test_the_page_has_just_the_metrics_of_an_agent(place: Place) -> None:
    flags = (*place.agent_flags("broker"), *METRICS)
    with NamesrvProcess(*place.flags("mTLS")) as namesrv, Agent(str(namesrv.endpoint), *flags) as agent:
        listen = agent.wait_for("agent_started")["metrics"]
        # Labels show once there was a call: one to the agent, and registrations.
        security = ClientSecurity(ClientFiles(place.authority.path, *place.callers["broker"]))
        with open_channel(agent.endpoint, security=security) as connection:
            status = AgentClient(connection)
            eventually(lambda: status.target(namesrv.endpoint).registered)
        metrics = exposed(listen)
    assert metrics == documented("broker_agent_", "grpc_", "process_", "python_")


@pytest.fixture
def listen() -> Iterator[Endpoint]:
    server = MetricsServer(Endpoint("127.0.0.1", 0), metrics_registry(), lambda: None, lambda: None)
    server.start()
    yield server.endpoint
    server.stop()


def test_a_request_above_the_limit_is_refused_before_it_is_whole(listen: Endpoint) -> None:
    with socket.create_connection(listen, timeout=TIMEOUT) as peer:
        line = b"X: " + b"a" * 1_000 + b"\r\n"
        peer.sendall(b"GET /healthz HTTP/1.1\r\n" + line * (MAX_REQUEST_BYTES // len(line) + 1))
        assert peer.recv(100).startswith(b"HTTP/1.0 431 ")


def test_a_peer_that_sends_half_a_request_is_cut_after_its_time(
    listen: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_http, "REQUEST_SECONDS", 0.2)
    with socket.create_connection(listen, timeout=TIMEOUT) as peer:
        peer.sendall(b"GET /healthz HTTP/1.1")
        assert peer.recv(100) == b""


def test_a_listener_that_stops_at_once_logs_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        server = MetricsServer(Endpoint("127.0.0.1", 0), metrics_registry(), lambda: None, lambda: None)
        server.start()
        server.stop()
    assert caplog.records == []
