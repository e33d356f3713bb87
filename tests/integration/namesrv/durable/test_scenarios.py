"""Acceptance scenarios of upstream's request processors that need a process, a disk or a network.

The others are in tests/unit/namesrv/scenarios; those of the KV configuration in test_kv_config.py.
"""

from __future__ import annotations

import grpc
import pytest
from namesrv_api.v1 import registration_service_pb2

from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import registration

PACKAGE = "/namesrv_api.v1"
ACCEPTED = {
    106: "RouteService/GetBrokerClusterInfo",
    206: "RouteService/ListTopics",
    319: "AdminService/GetNamesrvConfig",
}
"""Calls that need no parameters, by RocketMQ's code. 224, 304 and 311 to 313 are filters of 206."""
REFUSED = {
    205: ("AdminService/WipeWritePermOfBroker", "broker_name"),
    216: ("AdminService/DeleteTopic", "topic"),
    318: ("AdminService/UpdateNamesrvConfig", "values"),
    322: ("RegistrationService/QueryDataVersion", "broker.cluster_name"),
    327: ("AdminService/AddWritePermOfBroker", "broker_name"),
    901: ("RouteService/GetBrokerMemberGroup", "cluster_name"),
    904: ("RegistrationService/BrokerHeartbeat", "broker.cluster_name"),
}
"""Calls that are about something, and what an empty request does not name."""
SENT_TOPICS = [f"topic-{number:05}" for number in range(10_000)]


def test_a_call_that_there_is_not_is_answered_so(client: Client) -> None:
    """Scenario 48. RocketMQ 4 leaves the caller waiting."""
    for path in (f"{PACKAGE}.RouteService/NoSuchCall", "/no.such.Service/NoSuchCall"):
        assert client.failure(path, b"").code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("code", ACCEPTED)
def test_a_call_that_needs_nothing_takes_an_empty_request(admin: Client, code: int) -> None:
    """Scenario 55."""
    call = admin.connection.unary_unary(f"{PACKAGE}.{ACCEPTED[code]}", None, None)
    assert call(b"", timeout=TIMEOUT)


@pytest.mark.parametrize("code", REFUSED)
def test_a_call_that_is_about_something_is_refused_if_the_request_does_not_say_what(admin: Client, code: int) -> None:
    """Scenario 55, decided otherwise: upstream answers success to an empty header, and does nothing."""
    path, field = REFUSED[code]
    error = admin.failure(f"{PACKAGE}.{path}", b"")
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert error.violations[0].field == error.metadata["field"] == field


def test_a_name_server_starts_and_ends_without_an_error() -> None:
    """Scenario 59."""
    with NamesrvProcess() as namesrv:
        assert namesrv.terminate() == 0
        assert [line["level"] for line in namesrv.lines if line["level"] != "info"] == []
        assert namesrv.events("namesrv_stopped")


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_registration_of_10000_topics_arrives_plain_and_compressed(
    client: Client, compression: grpc.Compression
) -> None:
    """Scenario 68."""
    request = registration(SENT_TOPICS)
    client.registration.RegisterBroker(request, timeout=TIMEOUT, compression=compression)
    rows = [row for message in client.snapshot() for row in message.chunk.topics]
    assert sorted(row.topic for row in rows) == SENT_TOPICS
    assert {
        (queue.read_queue_nums, queue.write_queue_nums, queue.perm) for row in rows for queue in row.queue_datas
    } == {(4, 4, 6)}
    query = registration_service_pb2.QueryDataVersionRequest(broker=request.broker, data_version=request.data_version)
    answer = client.registration.QueryDataVersion(query, timeout=TIMEOUT)
    assert (answer.changed, answer.data_version.timestamp_millis, answer.data_version.counter) == (False, 1_000, 1)
