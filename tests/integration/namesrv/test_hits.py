"""What the native engine answers or knows by itself counts, is permitted, traced and refused as all else is."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import registration_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.limits import MAX_METADATA_BYTES
from namesrv_common.grpc_errors import RichError
from tests.support.metrics_page import sample_of
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration, unregister
from tests.support.secured.fleet import LIVE_SECONDS, Place, connected, outcome, with_its_broker

TIMES = 7
NO_SCAN = ("--scan-not-active-broker-interval-millis", "0")
SAMPLED = ("traceparent", f"00-{'a' * 32}-{'b' * 16}-01")
NOT_SAMPLED = ("traceparent", f"00-{'a' * 32}-{'b' * 16}-00")
ASKED = "namesrv_engine_asked_calls_total"
LOOKUP = pb.GetTopicRouteRequest(topic="TopicTest")
HEARTBEAT = registration_service_pb2.BrokerHeartbeatRequest(broker=identity())


@pytest.fixture(scope="module")
def measured() -> Iterator[NamesrvProcess]:
    """A name server with metrics. Each test registers one broker, so that nothing is kept from the one before."""
    with NamesrvProcess(*NO_SCAN, "--metrics-listen", "127.0.0.1:0") as process:
        yield process


@pytest.fixture
def client(measured: NamesrvProcess) -> Iterator[Client]:
    with measured.connect() as connected:
        connected.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        yield connected
        unregister(connected)


def test_hits_are_in_the_metrics_by_method_and_code(measured: NamesrvProcess, client: Client) -> None:
    asked = sample_of(measured, ASKED)
    for _ in range(TIMES):
        assert client.route() is not None
        with pytest.raises(grpc.RpcError):
            client.routes.GetTopicRoute(pb.GetTopicRouteRequest(topic="Missing"), timeout=TIMEOUT)
    method = 'grpc_method="namesrv_api.v1.RouteService/GetTopicRoute"'
    assert sample_of(measured, f"grpc_server_call_started_total{{{method}}}") == 2 * TIMES
    for status in ("OK", "NOT_FOUND"):
        name = f'grpc_server_call_duration_seconds_count{{{method},grpc_status="{status}"}}'
        assert sample_of(measured, name) == TIMES
    assert sample_of(measured, ASKED) - asked == 2, "each lookup once"


def test_a_traced_lookup_is_a_hit_where_nobody_follows_traces(measured: NamesrvProcess, client: Client) -> None:
    for metadata, more in (((NOT_SAMPLED,), 1), ((NOT_SAMPLED,), 0), ((SAMPLED,), 0)):
        before = sample_of(measured, ASKED)
        client.routes.GetTopicRoute(LOOKUP, timeout=TIMEOUT, metadata=metadata)
        assert sample_of(measured, ASKED) - before == more


def test_an_answer_is_kept_for_one_form_of_its_request(measured: NamesrvProcess, client: Client) -> None:
    unknown_field, absent = b"\xfa\x7f\x01x", pb.GetTopicRouteRequest(topic="Absent").SerializeToString()
    look_up = client.connection.unary_unary("/namesrv_api.v1.RouteService/GetTopicRoute", None, None)
    before = sample_of(measured, ASKED)
    for request, asked in ((absent, 1), (absent, 1), (absent + unknown_field, 2), (absent + unknown_field, 3)):
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            look_up(request, timeout=TIMEOUT)
        assert sample_of(measured, ASKED) - before == asked


def beat(caller: Client) -> str:
    return outcome(lambda: caller.registration.BrokerHeartbeat(HEARTBEAT, timeout=TIMEOUT))


def test_heartbeats_are_counted_and_told_the_truth_each_time(measured: NamesrvProcess, client: Client) -> None:
    assert [beat(client) for _ in range(TIMES)] == ["OK"] * TIMES
    unregister(client)
    assert beat(client) == "BROKER_NOT_REGISTERED"
    client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
    assert beat(client) == "OK"
    for code, times in (("OK", TIMES + 1), ("NOT_FOUND", 1)):
        labels = f'grpc_method="namesrv_api.v1.RegistrationService/BrokerHeartbeat",grpc_status="{code}"'
        assert sample_of(measured, f"grpc_server_call_duration_seconds_count{{{labels}}}") == times


@pytest.mark.parametrize("kind", ["token", "mTLS"])
def test_permits_that_are_taken_away_hold_for_what_the_engine_knows(place: Place, kind: str) -> None:
    with (
        with_its_broker(place, kind, *NO_SCAN) as (server, broker),
        connected(server.endpoint, place.files(kind, "client")) as client,
    ):

        def lookup() -> str:
            return outcome(lambda: client.routes.GetTopicRoute(LOOKUP, timeout=TIMEOUT))

        assert {lookup() for _ in range(TIMES)} | {beat(broker) for _ in range(TIMES)} == {"OK"}
        assert beat(client) == "NOT_PERMITTED", "what is known of one caller is not known of another"

        def both() -> str:
            return " ".join({lookup(), beat(broker)})

        place.permit(client={"look_up": False}, broker={"register": []})
        eventually(both, lambda reason: reason == "NOT_PERMITTED", LIVE_SECONDS)
        assert both() == "NOT_PERMITTED", "it was refused once, and passed again"
        place.permit()
        eventually(both, lambda reason: reason == "OK", LIVE_SECONDS)


def test_large_metadata_is_refused_before_a_kept_answer_is_given(client: Client) -> None:
    assert client.route() is not None
    filler = ("x-filler", "v" * MAX_METADATA_BYTES)
    with pytest.raises(grpc.RpcError) as caught:
        client.routes.GetTopicRoute(LOOKUP, timeout=TIMEOUT, metadata=(filler,))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


GOOD, MALFORMED = b"\x3a\x00", b"\xff\xff\xff"
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def test_calls_of_malformed_messages_are_refused_and_leave_nothing(measured: NamesrvProcess, client: Client) -> None:
    def reflection_of(*requests: bytes) -> RichError:
        call = client.connection.stream_stream(REFLECT, None, None)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter(requests), timeout=TIMEOUT))
        return RichError.of(caught.value)

    health, routes = "/grpc.health.v1.Health", "/namesrv_api.v1.RouteService"
    calls = (f"{health}/Check", f"{health}/Watch", f"{routes}/GetTopicRoute", f"{routes}/WatchTopicRoutes")
    errors = [client.failure(call, MALFORMED) for call in calls]
    errors += [reflection_of(MALFORMED), reflection_of(GOOD, MALFORMED)]
    assert {(error.code, error.reason) for error in errors} == {(grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")}
    eventually(lambda: sample_of(measured, "namesrv_engine_calls_under_way") == 0)
    assert measured.events("handler_failed") == []


def test_an_open_stream_of_reflection_has_a_share_of_its_own_kind(measured: NamesrvProcess, client: Client) -> None:
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    reflect: Any = client.connection.stream_stream(REFLECT, None, None)
    answers = reflect(iter(requests.get, None), timeout=TIMEOUT)
    requests.put(GOOD)
    assert next(answers)
    used = 'namesrv_shares_used{kind="reflections"}'
    assert sample_of(measured, used) == 1
    requests.put(None)
    eventually(lambda: sample_of(measured, used) == 0)
