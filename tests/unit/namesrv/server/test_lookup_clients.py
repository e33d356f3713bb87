"""The list of clients that look topics up: its bounds, and when it is recorded."""

from __future__ import annotations

import pytest
from namesrv_internal.v1.diagnostics_service_pb2 import ListClientsResponse

from namesrv.app.lookup_clients import MAX_TEXT_BYTES, ClientKey, LookupClients
from namesrv.limits import MAX_CLIENTS
from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def recording(clock: VirtualClock, most: int = 3) -> tuple[LookupClients, list[str]]:
    forgotten: list[str] = []
    clients = LookupClients(lambda: forgotten.append("answers"), clock.monotonic, clock.wall_millis, most)
    clients.record(60)
    return clients, forgotten


def test_recording_ends_by_itself_and_the_list_stays(clock: VirtualClock) -> None:
    clients, forgotten = recording(clock)
    clients.note("ipv4:10.0.0.1:999", "ipv4:10.0.0.1:999", "T")
    clients.record(60)
    assert forgotten == ["answers"], "answers kept before are forgotten once"
    clock.advance(60)
    assert not clients.is_recording
    assert list(clients.clients) == [ClientKey("10.0.0.1", "", "grpc")]
    clients.record(60)
    assert (list(clients.clients), forgotten) == ([], ["answers", "answers"])


def test_recording_that_is_ended_keeps_the_list(clock: VirtualClock) -> None:
    clients, _ = recording(clock)
    clients.note("ipv4:10.0.0.1:999", "ipv4:10.0.0.1:999", "T")
    clients.record(0)
    assert not clients.is_recording
    assert len(clients.clients) == 1


@pytest.mark.parametrize(
    ("peer", "caller", "key"),
    [
        ("ipv4:10.0.0.1:999", "ipv4:10.0.0.1:999", ClientKey("10.0.0.1", "", "grpc")),
        ("ipv6:%5B2001:db8::1%5D:999", "team-a", ClientKey("2001:db8::1", "team-a", "grpc")),
        ("rocketmq:10.0.0.1:999", "rocketmq:10.0.0.1:999", ClientKey("10.0.0.1", "", "rocketmq")),
        ("rocketmq:[::1]:999", "team-b", ClientKey("::1", "team-b", "rocketmq")),
        ("unix:", "unix:", ClientKey("", "", "grpc")),
    ],
)
def test_a_client_is_its_address_without_the_port(clock: VirtualClock, peer: str, caller: str, key: ClientKey) -> None:
    clients, _ = recording(clock)
    clients.note(peer, caller, "A")
    clients.note(peer, caller, "B")
    ((found, lookups),) = clients.clients.items()
    assert (found, lookups.lookup_count, lookups.last_topic) == (key, 2, "B")


def test_the_client_that_was_silent_for_longest_gives_way(clock: VirtualClock) -> None:
    clients, _ = recording(clock, most=2)
    for host in (1, 2, 1, 3):
        clients.note(f"ipv4:10.0.0.{host}:1", f"ipv4:10.0.0.{host}:1", "T")
    assert [key.address for key in clients.clients] == ["10.0.0.1", "10.0.0.3"]
    assert clients.left_out_count == 1


def test_the_longest_list_fits_one_answer_whatever_clients_ask_for(clock: VirtualClock) -> None:
    clients, _ = recording(clock, most=MAX_CLIENTS)
    clients.note("rocketmq:10.0.0.1:1", "\ud800" * 300, "語" * 70_000 + "\ud800")
    ((key, lookups),) = clients.clients.items()
    assert max(len(text.encode()) for text in (*key, lookups.last_topic)) <= MAX_TEXT_BYTES
    answer = ListClientsResponse()
    row = answer.clients.add(**key._asdict(), last_topic=lookups.last_topic, lookup_count=2**62)
    row.address, row.first_at_millis, row.last_at_millis = "f" * 39, 2**50, 2**50
    assert answer.ByteSize() * MAX_CLIENTS < 4 * 1024 * 1024
