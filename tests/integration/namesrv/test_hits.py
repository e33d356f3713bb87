"""Lookups that the native engine answers by itself count, are permitted and traced as all others are."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.limits import MAX_METADATA_BYTES
from tests.support.metrics_page import sample_of
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import registration, unregister
from tests.support.secured.fleet import Place, connected, lose_permits_for_a_while, outcome, with_its_broker

LOOKUPS = 7
NO_SCAN = ("--scan-not-active-broker-interval-millis", "0")
SAMPLED = ("traceparent", f"00-{'a' * 32}-{'b' * 16}-01")
NOT_SAMPLED = ("traceparent", f"00-{'a' * 32}-{'b' * 16}-00")


ASKED = "namesrv_engine_asked_calls_total"


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
    for _ in range(LOOKUPS):
        assert client.route() is not None
        with pytest.raises(grpc.RpcError):
            client.routes.GetTopicRoute(pb.GetTopicRouteRequest(topic="Missing"), timeout=TIMEOUT)
    method = 'grpc_method="namesrv_api.v1.RouteService/GetTopicRoute"'
    assert sample_of(measured, f"grpc_server_call_started_total{{{method}}}") == 2 * LOOKUPS
    for status in ("OK", "NOT_FOUND"):
        name = f'grpc_server_call_duration_seconds_count{{{method},grpc_status="{status}"}}'
        assert sample_of(measured, name) == LOOKUPS
    assert sample_of(measured, ASKED) - asked == 2, "each lookup once"


def test_a_lookup_that_its_caller_traces_is_a_hit_where_nobody_follows_traces(
    measured: NamesrvProcess, client: Client
) -> None:
    request = pb.GetTopicRouteRequest(topic="TopicTest")
    for metadata, more in (((NOT_SAMPLED,), 1), ((NOT_SAMPLED,), 0), ((SAMPLED,), 0)):
        before = sample_of(measured, ASKED)
        client.routes.GetTopicRoute(request, timeout=TIMEOUT, metadata=metadata)
        assert sample_of(measured, ASKED) - before == more


def test_an_answer_is_kept_for_one_form_of_its_request(measured: NamesrvProcess, client: Client) -> None:
    unknown_field, absent = b"\xfa\x7f\x01x", pb.GetTopicRouteRequest(topic="Absent").SerializeToString()
    look_up = client.connection.unary_unary("/namesrv_api.v1.RouteService/GetTopicRoute", None, None)
    before = sample_of(measured, ASKED)
    for request, asked in ((absent, 1), (absent, 1), (absent + unknown_field, 2), (absent + unknown_field, 3)):
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            look_up(request, timeout=TIMEOUT)
        assert sample_of(measured, ASKED) - before == asked


@pytest.mark.parametrize("kind", ["token", "mTLS"])
def test_permits_that_are_taken_away_are_taken_away_from_kept_answers_too(place: Place, kind: str) -> None:
    with (
        with_its_broker(place, kind, *NO_SCAN) as (server, _),
        connected(server.endpoint, place.files(kind, "client")) as client,
    ):

        def lookup() -> str:
            return outcome(lambda: client.routes.GetTopicRoute(request, timeout=TIMEOUT))

        request = pb.GetTopicRouteRequest(topic="TopicTest")
        assert [lookup() for _ in range(LOOKUPS)] == ["OK"] * LOOKUPS
        lose_permits_for_a_while(place, lookup, client={"look_up": False})


def test_large_metadata_is_refused_before_a_kept_answer_is_given(client: Client) -> None:
    assert client.route() is not None
    request, filler = pb.GetTopicRouteRequest(topic="TopicTest"), ("x-filler", "v" * MAX_METADATA_BYTES)
    with pytest.raises(grpc.RpcError) as caught:
        client.routes.GetTopicRoute(request, timeout=TIMEOUT, metadata=(filler,))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
