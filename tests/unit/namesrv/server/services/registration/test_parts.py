"""Registrations in parts: in order, bounded, and forgotten when they do not go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv import limits
from namesrv.app.quotas import FairShares
from namesrv.core.errors import ChannelGone, InvalidField, LimitExceeded, NeedFullRegistration
from namesrv.core.liveness import ChannelTable
from namesrv.core.model import BrokerKey, DataVersion, Registration
from namesrv.grpc_api.registration import RegistrationParts, TopicsRead, read_topics
from namesrv.limits import MAX_REGISTRATION_PARTS, MAX_STAGED_TOPICS, STAGED_PART_SECONDS
from tests.support.core_fleet import VERSION
from tests.support.registrations import topic_config
from tests.support.virtual_clock import VirtualClock


class Parts:
    """Takes parts of brokers' registrations."""

    def __init__(self, clock: VirtualClock, max_topics: int = MAX_STAGED_TOPICS) -> None:
        numbers = itertools.count(1)
        self.channels = ChannelTable(lambda: f"ch-{next(numbers)}")
        self.channel_id = self.channels.open()
        self.topics = FairShares.of(staged_topics=max_topics).staged_topics
        self.parts = RegistrationParts(self.channels, clock.monotonic, self.topics)

    def begin(
        self, request: pb.RegisterBrokerRequest, addr: str = "127.0.0.1:1", version: DataVersion = VERSION
    ) -> Callable[[], TopicsRead | int]:
        """Begins to read a part; the function reads it to its end."""
        registration = Registration(BrokerKey("c", "b"), 0, addr, version, None)
        request.channel_id = self.channel_id
        staged = self.parts.begin(registration, request)

        def end() -> TopicsRead | int:
            read_topics(request.topic_configs, (), staged.topic_configs)
            return self.parts.add(registration, request, staged)

        return end

    def add(
        self, request: pb.RegisterBrokerRequest, addr: str = "127.0.0.1:1", version: DataVersion = VERSION
    ) -> TopicsRead | int:
        """Reads a part at once."""
        return self.begin(request, addr, version)()

    def whole(self, request: pb.RegisterBrokerRequest) -> list[str]:
        """Reads the last part; the topics of all."""
        topics = self.add(request)
        assert not isinstance(topics, int)
        return list(topics)


def part(index: int, count: int, *topics: str) -> pb.RegisterBrokerRequest:
    return pb.RegisterBrokerRequest(
        part=pb.RegistrationPart(index=index, count=count), topic_configs=[topic_config(topic) for topic in topics]
    )


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def parts(clock: VirtualClock) -> Parts:
    return Parts(clock, max_topics=3)


def test_the_last_part_gives_all_topics(parts: Parts) -> None:
    assert parts.add(part(0, 3, "a")) == 1
    assert parts.add(part(1, 3, "b")) == 2
    assert parts.whole(part(2, 3, "c")) == ["a", "b", "c"]


def test_a_part_that_does_not_follow_the_one_before_is_refused(parts: Parts) -> None:
    with pytest.raises(NeedFullRegistration, match="part 1 of 3"):
        parts.add(part(1, 3))
    parts.add(part(0, 3))
    with pytest.raises(NeedFullRegistration):
        parts.add(part(2, 3))


def test_a_part_of_another_version_or_count_is_refused(parts: Parts) -> None:
    parts.add(part(0, 3))
    with pytest.raises(NeedFullRegistration):
        parts.add(part(1, 3), version=DataVersion(9, 9))
    parts.add(part(0, 3))
    with pytest.raises(NeedFullRegistration):
        parts.add(part(1, 4))


def test_part_zero_starts_again(parts: Parts) -> None:
    parts.add(part(0, 2, "old"))
    parts.add(part(0, 2, "a"))
    assert parts.whole(part(1, 2, "b")) == ["a", "b"]


def test_a_part_with_a_bad_topic_is_refused_at_once_and_takes_those_before_it_along(parts: Parts) -> None:
    parts.add(part(0, 3, "a"))
    with pytest.raises(InvalidField, match=r"topic_configs\[1\].topic_name"):
        parts.add(part(1, 3, "b", "not a name"))
    with pytest.raises(NeedFullRegistration):
        parts.add(part(1, 3, "b"))


def test_a_topic_of_an_earlier_part_is_refused(parts: Parts) -> None:
    parts.add(part(0, 2, "a"))
    with pytest.raises(InvalidField, match="'a' is there twice"):
        parts.add(part(1, 2, "b", "a"))


def test_topics_of_all_parts_together_have_the_limit_of_one_registration(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_TOPICS_PER_REGISTRATION", 2)
    parts.add(part(0, 2, "a"))
    assert parts.whole(part(1, 2, "b")) == ["a", "b"]
    parts.add(part(0, 2, "a"))
    with pytest.raises(LimitExceeded, match="topics of one registration"):
        parts.add(part(1, 2, "b", "c"))


def test_parts_that_wait_too_long_are_forgotten(parts: Parts, clock: VirtualClock) -> None:
    parts.add(part(0, 2))
    clock.advance(STAGED_PART_SECONDS + 0.1)
    with pytest.raises(NeedFullRegistration):
        parts.add(part(1, 2))


def test_parts_of_an_ended_channel_are_forgotten(parts: Parts) -> None:
    parts.add(part(0, 2))
    parts.parts.drop_channel(parts.channel_id)
    with pytest.raises(NeedFullRegistration):
        parts.add(part(1, 2))


class Compared(str):
    """A channel's id that counts how often it is compared with others."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return super().__eq__(other)


def test_the_end_of_a_channel_does_not_look_at_the_parts_of_others(clock: VirtualClock) -> None:
    parts = Parts(clock)
    for port in range(1, 101):
        parts.add(part(0, 2), addr=f"127.0.0.1:{port}")
    parts.parts.drop_channel(Compared("another channel"))
    assert Compared.comparisons < 10
    assert parts.topics.used == 100


def test_a_part_whose_channel_ends_while_it_is_read_is_not_staged(clock: VirtualClock) -> None:
    parts = Parts(clock)
    end = parts.begin(part(0, 2, "a"))
    parts.channels.end(parts.channel_id)
    parts.parts.drop_channel(parts.channel_id)
    with pytest.raises(ChannelGone):
        end()
    parts.channel_id = parts.channels.open()
    with pytest.raises(NeedFullRegistration):
        parts.add(part(1, 2))


def test_all_staged_parts_together_are_bounded(parts: Parts) -> None:
    parts.add(part(0, 2, "a", "b"))
    with pytest.raises(LimitExceeded) as caught:
        parts.add(part(0, 2, "a", "b"), addr="127.0.0.1:2")
    expected = {"name": "topics of staged registrations", "value": "4", "limit": "3", "caller": "all"}
    assert caught.value.metadata == expected
    parts.add(part(0, 2, "a"), addr="127.0.0.1:2")
    assert parts.whole(part(1, 2, "c")) == ["a", "b", "c"]  # what was staged before can still be completed


def test_a_part_without_topics_takes_a_place(parts: Parts) -> None:
    for number in range(3):
        parts.add(part(0, 2), addr=f"127.0.0.1:{number + 1}")
    with pytest.raises(LimitExceeded):
        parts.add(part(0, 2), addr="127.0.0.1:4")


def test_all_that_is_staged_is_given_back_however_it_ends(parts: Parts, clock: VirtualClock) -> None:
    parts.add(part(0, 2, "a"))
    parts.whole(part(1, 2, "b"))
    assert parts.topics.used == 0
    parts.add(part(0, 2, "a"))
    with pytest.raises(InvalidField):
        parts.add(part(1, 2, "not a name"))
    assert parts.topics.used == 0
    parts.add(part(0, 2, "a", "b"))
    clock.advance(STAGED_PART_SECONDS + 0.1)
    parts.parts.drop_overdue()
    assert parts.topics.used == 0
    parts.add(part(0, 2, "a"))
    parts.parts.drop_channel(parts.channel_id)
    assert parts.topics.used == 0


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (part(0, 0), "part.count"),
        (part(0, MAX_REGISTRATION_PARTS + 1), "part.count"),
        (part(2, 2), "part.index"),
        (part(-1, 2), "part.index"),
        (pb.RegisterBrokerRequest(part=pb.RegistrationPart(count=2)), "part.index"),
    ],
)
def test_wrong_numbers_name_the_field(parts: Parts, request_: pb.RegisterBrokerRequest, field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parts.add(request_)
    assert caught.value.field == field


def test_as_many_parts_as_the_limit_are_taken(clock: VirtualClock) -> None:
    parts = Parts(clock)
    for index in range(MAX_REGISTRATION_PARTS - 1):
        assert parts.add(part(index, MAX_REGISTRATION_PARTS, f"T{index}")) == index + 1
    last = MAX_REGISTRATION_PARTS - 1
    assert len(parts.whole(part(last, MAX_REGISTRATION_PARTS, "last"))) == MAX_REGISTRATION_PARTS


def test_queues_of_mappings_count_as_topics_do(clock: VirtualClock) -> None:
    parts = Parts(clock, max_topics=4)
    static = part(0, 2, "a")
    static.topic_configs[0].mapping.total_queue_nums = 3
    static.topic_configs[0].mapping.topic_queue_ids.extend([0, 1, 2])
    static.topic_configs[0].mapping.broker_queue_ids.extend([0, 1, 2])
    parts.add(static)
    assert parts.topics.used == 4
    with pytest.raises(LimitExceeded):
        parts.add(part(0, 2, "b"), addr="127.0.0.1:2")
