"""What an agent remembers of a name server for its metrics."""

from __future__ import annotations

from broker_agent_api.v1 import broker_agent_service_pb2 as pb

from broker_agent.name_server import TargetRecord
from groundwork.endpoints import Endpoint
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock


def accept(record: TargetRecord, kind: pb.RegistrationKind, *, channel_is_open: bool = True) -> None:
    record.accepted(kind, topics=1, generation=1, channel_is_open=channel_is_open)


def test_the_age_of_a_registration_starts_anew_when_it_is_accepted_or_found_unchanged_and_with_no_failure() -> None:
    time = VirtualClock()
    record = TargetRecord(Endpoint("127.0.0.1", 9876), agent_timing(time))
    seen = [record.confirmed_seconds_ago]
    accept(record, pb.REGISTRATION_KIND_FULL)
    time.advance(30)
    seen.append(record.confirmed_seconds_ago)
    record.queried()
    time.advance(7)
    record.count(pb.REGISTRATION_KIND_QUERY, "failed")
    record.failed("gone")
    seen.append(record.confirmed_seconds_ago)
    assert seen == [None, 30, 7]


def test_calls_are_counted_by_kind_and_result() -> None:
    record = TargetRecord(Endpoint("127.0.0.1", 9876), agent_timing(VirtualClock()))
    accept(record, pb.REGISTRATION_KIND_FULL)
    accept(record, pb.REGISTRATION_KIND_FULL, channel_is_open=False)
    record.count(pb.REGISTRATION_KIND_INCREMENT, "failed")
    assert record.counts == {
        (pb.REGISTRATION_KIND_FULL, "accepted"): 2,
        (pb.REGISTRATION_KIND_INCREMENT, "failed"): 1,
    }
