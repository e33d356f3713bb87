"""Registrations in parts: in order, bounded, and forgotten when they do not go on."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.config.limits import MAX_REGISTRATION_PARTS, STAGED_PART_SECONDS
from namesrv.core.errors import InvalidField, LimitExceeded, NeedFullRegistration
from namesrv.core.records.rows import DataVersion, LiveKey
from namesrv.server.services.registration.parts import RegistrationParts
from support.core_fleet import VERSION
from support.virtual_clock import VirtualClock

KEY = LiveKey("c", "127.0.0.1:1")


def part(index: int, count: int, topic: str = "T", channel_id: str = "ch") -> pb.RegisterBrokerRequest:
    return pb.RegisterBrokerRequest(
        channel_id=channel_id,
        part=pb.RegistrationPart(index=index, count=count),
        topic_configs=[route_data_pb2.TopicConfig(topic_name=topic)],
    )


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def parts(clock: VirtualClock) -> RegistrationParts:
    return RegistrationParts(clock.monotonic, max_bytes=100)


def test_the_last_part_gives_all_topics(parts: RegistrationParts) -> None:
    assert parts.add(KEY, VERSION, part(0, 3, "a")) == 1
    assert parts.add(KEY, VERSION, part(1, 3, "b")) == 2
    whole = parts.add(KEY, VERSION, part(2, 3, "c"))
    assert not isinstance(whole, int)
    assert [config.topic_name for config in whole] == ["a", "b", "c"]


def test_a_part_that_does_not_follow_the_one_before_is_refused(parts: RegistrationParts) -> None:
    with pytest.raises(NeedFullRegistration, match="part 1 of 3"):
        parts.add(KEY, VERSION, part(1, 3))
    parts.add(KEY, VERSION, part(0, 3))
    with pytest.raises(NeedFullRegistration):
        parts.add(KEY, VERSION, part(2, 3))


def test_a_part_of_another_version_or_count_is_refused(parts: RegistrationParts) -> None:
    parts.add(KEY, VERSION, part(0, 3))
    with pytest.raises(NeedFullRegistration):
        parts.add(KEY, DataVersion(9, 9), part(1, 3))
    parts.add(KEY, VERSION, part(0, 3))
    with pytest.raises(NeedFullRegistration):
        parts.add(KEY, VERSION, part(1, 4))


def test_part_zero_starts_again(parts: RegistrationParts) -> None:
    parts.add(KEY, VERSION, part(0, 2, "old"))
    parts.add(KEY, VERSION, part(0, 2, "a"))
    whole = parts.add(KEY, VERSION, part(1, 2, "b"))
    assert not isinstance(whole, int)
    assert [config.topic_name for config in whole] == ["a", "b"]


def test_parts_that_wait_too_long_are_forgotten(parts: RegistrationParts, clock: VirtualClock) -> None:
    parts.add(KEY, VERSION, part(0, 2))
    clock.advance(STAGED_PART_SECONDS + 0.1)
    with pytest.raises(NeedFullRegistration):
        parts.add(KEY, VERSION, part(1, 2))


def test_parts_of_an_ended_channel_are_forgotten(parts: RegistrationParts) -> None:
    parts.add(KEY, VERSION, part(0, 2))
    parts.drop_channel("ch")
    with pytest.raises(NeedFullRegistration):
        parts.add(KEY, VERSION, part(1, 2))


def test_all_staged_parts_together_are_bounded(parts: RegistrationParts) -> None:
    parts.add(KEY, VERSION, part(0, 2, "a" * 40))
    with pytest.raises(LimitExceeded, match="staged"):
        parts.add(LiveKey("c", "127.0.0.1:2"), VERSION, part(0, 2, "a" * 40))
    parts.add(KEY, VERSION, part(1, 2))  # what was staged before can still be completed


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (part(0, 0), "part.count"),
        (part(0, MAX_REGISTRATION_PARTS + 1), "part.count"),
        (part(2, 2), "part.index"),
        (part(-1, 2), "part.index"),
        (pb.RegisterBrokerRequest(channel_id="ch", part=pb.RegistrationPart(count=2)), "part.index"),
    ],
)
def test_wrong_numbers_name_the_field(parts: RegistrationParts, request_: pb.RegisterBrokerRequest, field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parts.add(KEY, VERSION, request_)
    assert caught.value.field == field


def test_as_many_parts_as_the_limit_are_taken() -> None:
    parts = RegistrationParts(VirtualClock().monotonic)
    for index in range(MAX_REGISTRATION_PARTS - 1):
        assert parts.add(KEY, VERSION, part(index, MAX_REGISTRATION_PARTS)) == index + 1
    whole = parts.add(KEY, VERSION, part(MAX_REGISTRATION_PARTS - 1, MAX_REGISTRATION_PARTS))
    assert not isinstance(whole, int)
    assert len(list(whole)) == MAX_REGISTRATION_PARTS
