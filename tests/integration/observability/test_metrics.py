"""What a name server tells Prometheus and whoever asks over HTTP whether it is alive and ready."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path
from typing import Any

from namesrv_api.v1 import registration_service_pb2, route_data_pb2, route_service_pb2

from tests.support import metrics_page
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import identity, registration
from tests.support.secured.fleet import refused_start

PACKAGE = "namesrv_api.v1"


def get(namesrv: NamesrvProcess, path: str) -> tuple[int, str]:
    return metrics_page.get(namesrv.wait_for("namesrv_started")["metrics"], path)


def samples(namesrv: NamesrvProcess) -> dict[tuple[str, ...], float]:
    return metrics_page.samples(namesrv.wait_for("namesrv_started")["metrics"])


def test_tables_changes_and_calls_are_counted() -> None:
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0") as namesrv, namesrv.connect() as client:
        channel = client.open_channel()
        client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=client.TIMEOUT)
        seen = samples(namesrv)
        assert (seen["namesrv_live_brokers",], seen["namesrv_topics",], seen["namesrv_warm",]) == (1, 1, 1)
        assert seen["namesrv_changes_total", "RegisterBroker"] == 1
        assert (seen["namesrv_topics_skipped_total",], seen["namesrv_groups_of_a_name_again",]) == (0, 0)
        channel.close()
        eventually(lambda: samples(namesrv).get(("namesrv_removals_total", "CHANNEL_CLOSED")), lambda count: count == 1)
        request = route_service_pb2.GetTopicRouteRequest(topic="Nothing")
        client.failure(f"/{PACKAGE}.RouteService/GetTopicRoute", request)
        method = f"{PACKAGE}.RouteService/GetTopicRoute"
        ended = ("grpc_server_call_duration_seconds_count", method, "NOT_FOUND")
        # A call is counted as ended when its answer has left.
        seen = eventually(lambda: samples(namesrv), lambda seen: seen.get(ended) == 1)
        assert seen["grpc_server_call_started_total", method] == 1
        registered = f"{PACKAGE}.RegistrationService/RegisterBroker"
        assert seen["grpc_server_call_duration_seconds_count", registered, "OK"] == 1
        assert seen["process_open_fds",] > 0


def test_alive_and_ready_are_told_apart(tmp_path: Path) -> None:
    flags = ("--metrics-listen", "127.0.0.1:0", "--data-dir", str(tmp_path), "--warm-up-millis", "3600000")
    with NamesrvProcess(*flags) as namesrv:
        assert get(namesrv, "/healthz") == (200, "ok\n")
        assert get(namesrv, "/readyz") == (503, "warming: brokers of the time before may be missing\n")
        assert get(namesrv, "/")[0] == 404
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0") as namesrv:
        assert get(namesrv, "/readyz") == (200, "ok\n")
        assert get(namesrv, "/healthz") == (200, "ok\n")


def test_an_address_that_is_taken_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refused_start("--metrics-listen", listen)
    assert said == f"namesrv: setting metrics_listen: cannot listen on {listen}: Address already in use"


def test_registrations_and_the_lag_of_watches_are_counted() -> None:
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0") as namesrv, namesrv.connect() as client:
        watch: Any = client.routes.WatchTopicRoutes(
            iter([route_service_pb2.WatchTopicRoutesRequest(topics=["TopicTest"])])
        )
        next(watch)
        client.registration.RegisterBroker(registration(), timeout=client.TIMEOUT)
        client.registration.RegisterBroker(registration(), timeout=client.TIMEOUT)
        client.failure(f"/{PACKAGE}.RegistrationService/RegisterBroker", registration(channel_id="gone"))
        next(watch)
        kinds = ("changed", "unchanged", "refused")
        seen = samples(namesrv)
        assert [seen["namesrv_registrations_total", "full", result] for result in kinds] == [1, 1, 1]
        # A watch that is just sending takes a change along, and no time is counted for it.
        counters = itertools.count(2)

        def after_a_change() -> dict[tuple[str, ...], float]:
            number = next(counters)
            request = registration(counter=number)
            request.topic_configs[0].perm = 6 - 2 * (number % 2)
            client.registration.RegisterBroker(request, timeout=client.TIMEOUT)
            return samples(namesrv)

        eventually(after_a_change, lambda now: now["namesrv_watch_lag_seconds_count",] > 0)
        watch.cancel()


def test_the_number_of_series_does_not_grow_with_brokers_topics_callers_or_calls_that_are_none() -> None:
    def series() -> set[tuple[str, ...]]:
        return set(samples(namesrv))

    def use(number: int) -> None:
        with namesrv.connect() as caller:
            broker = identity(f"127.0.0.1:{20_000 + number}", name=f"broker-{number}")
            topics = [f"T{number}-{index}" for index in range(20)]
            caller.registration.RegisterBroker(registration(topics, broker), timeout=caller.TIMEOUT)
            assert caller.route(topics[0])
            assert caller.route(f"no-such-{number}") is None
            caller.failure(f"/{PACKAGE}.RouteService/NoSuchCall{number}", b"")
            caller.failure(f"/no.such.Service{number}/Call", b"")
            caller.registration.UnregisterBroker(
                registration_service_pb2.UnregisterBrokerRequest(
                    broker=broker, reason=route_data_pb2.REMOVAL_REASON_UNREGISTERED
                ),
                timeout=caller.TIMEOUT,
            )

    with NamesrvProcess("--metrics-listen", "127.0.0.1:0") as namesrv:
        use(0)
        ended = ("grpc_server_call_duration_seconds_count", f"{PACKAGE}.RegistrationService/UnregisterBroker", "OK")
        eventually(lambda: ended in series())
        before = series()
        for number in range(1, 30):
            use(number)
        eventually(lambda: samples(namesrv)[ended], lambda count: count == 30)
        assert series() == before
