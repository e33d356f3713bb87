"""Signs of life that the native engine knows by a number are counted, permitted and answered as all others are."""

from __future__ import annotations

import grpc
import pytest
from namesrv_api.v1 import registration_service_pb2 as pb

from tests.support.metrics_page import sample_of
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import data_version, identity, registration, unregister
from tests.support.secured.fleet import Place, connected, lose_permits_for_a_while, outcome, with_its_broker

TIMES = 7
NO_SCAN = ("--scan-not-active-broker-interval-millis", "0")
HEARTBEAT = pb.BrokerHeartbeatRequest(broker=identity())
QUESTION = pb.QueryDataVersionRequest(broker=identity(), data_version=data_version())


def code_of_heartbeat(client: Client) -> grpc.StatusCode:
    try:
        client.registration.BrokerHeartbeat(HEARTBEAT, timeout=TIMEOUT)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_signs_of_life_are_in_the_metrics_and_told_the_truth_each_time() -> None:
    options = ("--metrics-listen", "127.0.0.1:0", "--warm-up-millis", "0")
    with NamesrvProcess(*NO_SCAN, *options) as server, server.connect() as client:
        ask = client.registration.QueryDataVersion
        client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        assert [code_of_heartbeat(client) for _ in range(TIMES)] == [grpc.StatusCode.OK] * TIMES
        first = [ask(QUESTION, timeout=TIMEOUT) for _ in range(TIMES)]
        assert all(not answer.changed and answer.header.revision == 1 for answer in first)
        client.registration.RegisterBroker(registration(counter=2), timeout=TIMEOUT)
        second = ask(QUESTION, timeout=TIMEOUT)
        assert (second.changed, second.data_version.counter) == (True, 2)
        assert second.header.revision > first[-1].header.revision
        unregister(client)
        assert code_of_heartbeat(client) is grpc.StatusCode.NOT_FOUND
        assert not ask(QUESTION, timeout=TIMEOUT).HasField("data_version")
        client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        assert code_of_heartbeat(client) is grpc.StatusCode.OK
        told = {
            ("BrokerHeartbeat", "OK"): TIMES + 1,
            ("BrokerHeartbeat", "NOT_FOUND"): 1,
            ("QueryDataVersion", "OK"): TIMES + 2,
        }
        for (call, code), times in told.items():
            labels = f'grpc_method="namesrv_api.v1.RegistrationService/{call}",grpc_status="{code}"'
            assert sample_of(server, f"grpc_server_call_duration_seconds_count{{{labels}}}") == times


@pytest.mark.parametrize("kind", ["token", "mTLS"])
def test_permits_that_are_taken_away_are_taken_away_from_known_calls_too(place: Place, kind: str) -> None:
    with (
        with_its_broker(place, kind, *NO_SCAN) as (server, broker),
        connected(server.endpoint, place.files(kind, "client")) as client,
    ):

        def beat(caller: Client) -> str:
            return outcome(lambda: caller.registration.BrokerHeartbeat(HEARTBEAT, timeout=TIMEOUT))

        assert [beat(broker) for _ in range(TIMES)] == ["OK"] * TIMES
        assert beat(client) == "NOT_PERMITTED", "what is known of one caller is not known of another"
        lose_permits_for_a_while(place, lambda: beat(broker), broker={"register": []})
