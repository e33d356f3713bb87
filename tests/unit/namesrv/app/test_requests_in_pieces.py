"""Large requests in pieces: the same message, or the same refusal, as in one."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.app.worker import Worker
from namesrv.app.writer import TableWriter
from namesrv.core.errors import Reason
from namesrv.engines.api import EndOfPiece
from namesrv.grpc_api.handlers import RequestsInPieces
from namesrv.limits import MAX_MESSAGE_BYTES, MAX_TOPICS_PER_REGISTRATION
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.engines import LEFT_OUT
from tests.support.patience import TIMEOUT
from tests.support.refusals import refuses
from tests.support.state_changes import HeldWork

TOPICS = st.builds(
    route_data_pb2.TopicConfig,
    topic=st.text(max_size=20),
    read_queue_nums=st.none() | st.integers(0, 2**31 - 1),
    perm=st.none() | st.integers(-1, 7),
)
REGISTRATIONS = st.builds(
    pb.RegisterBrokerRequest,
    broker=st.none() | st.builds(route_data_pb2.BrokerIdentity, cluster_name=st.text(max_size=300)),
    data_version=st.none() | st.builds(route_data_pb2.DataVersion, counter=st.none() | st.integers(0, 2**62)),
    topic_configs=st.lists(TOPICS, max_size=30),
    channel_id=st.none() | st.text(max_size=20),
    heartbeat_timeout_millis=st.none() | st.integers(0, 2**63 - 1),
)
UNKNOWN_FIELDS = st.lists(st.sampled_from([b"\xf8\x06\x01", b"\xfa\x06\x02ab", b"\xfd\x06abcd"])).map(b"".join)
"""Of numbers that the message does not have: a varint, two bytes, and four bytes of no count."""
THREE = pb.RegisterBrokerRequest(topic_configs=[route_data_pb2.TopicConfig(topic=name) for name in "abc"])
TOPIC_BYTES = THREE.ByteSize() // 3
MANY = THREE.SerializeToString() * 2
EMPTY_TOPIC = b"\x22\x00"
WRITER, READER = TableWriter(), Worker("reader")
"""For all tests that need no line of their own."""


def cutter(least_bytes: int, most_fields: int = 1_000) -> EndOfPiece:
    engine = pytest.importorskip("namesrv_engine", reason=LEFT_OUT)

    def end_of_piece(request: bytes, begin: int, _least_bytes: int, _most_fields: int, /) -> int:
        end: int = engine.end_of_piece(request, begin, least_bytes, most_fields)
        return end

    return end_of_piece


def parsed(request: bytes, end_of_piece: EndOfPiece) -> Message:
    return asyncio.run(
        RequestsInPieces(WRITER, READER, end_of_piece).parsed(pb.RegisterBrokerRequest, request, CONTEXT)
    )


@given(
    one=REGISTRATIONS,
    unknown=UNKNOWN_FIELDS,
    other=REGISTRATIONS,
    least_bytes=st.integers(0, 400),
    most_fields=st.integers(1, 10),
)
def test_pieces_of_any_size_are_the_message_that_was_sent(
    one: pb.RegisterBrokerRequest, unknown: bytes, other: pb.RegisterBrokerRequest, least_bytes: int, most_fields: int
) -> None:
    request = one.SerializeToString() + unknown + other.SerializeToString()
    sent = pb.RegisterBrokerRequest.FromString(request)
    assert parsed(request, cutter(least_bytes, most_fields)) == sent


@given(sent=REGISTRATIONS, least_bytes=st.integers(0, 400), damage=st.binary(max_size=40), at=st.integers(0, 2_000))
def test_what_is_damaged_ends_in_pieces_as_in_one(
    sent: pb.RegisterBrokerRequest, least_bytes: int, damage: bytes, at: int
) -> None:
    request = sent.SerializeToString()
    damaged = request[:at] + damage + request[at + len(damage) :]
    try:
        expected = pb.RegisterBrokerRequest.FromString(damaged)
    except DecodeError:
        with pytest.raises(DecodeError):
            parsed(damaged, cutter(least_bytes))
    else:
        in_pieces = parsed(damaged, cutter(least_bytes))
        assert in_pieces.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_topics_over_the_limit_are_refused_before_all_are_parsed() -> None:
    ends: list[int] = []
    cut = cutter(1_000)

    def noted(request: bytes, begin: int, least_bytes: int, most_fields: int, /) -> int:
        ends.append(cut(request, begin, least_bytes, most_fields))
        return ends[-1]

    with refuses(Reason.LIMIT_EXCEEDED, match="topics of one registration"):
        parsed(EMPTY_TOPIC * (MAX_TOPICS_PER_REGISTRATION * 2), noted)
    assert ends[-1] <= len(EMPTY_TOPIC) * MAX_TOPICS_PER_REGISTRATION + 1_000


def test_what_cannot_be_cut_has_the_limit_of_one_piece() -> None:
    field = b"\xfa\x06\xfa\xff\xff\x01" + bytes(MAX_MESSAGE_BYTES - 6)
    assert parsed(field + field, cutter(1_000)) == pb.RegisterBrokerRequest.FromString(field + field)
    with refuses(Reason.LIMIT_EXCEEDED, match="bytes of one field: 4194305"):
        parsed(b"\xfa\x06\xfb\xff\xff\x01" + bytes(MAX_MESSAGE_BYTES - 5), cutter(1_000))


class Parsing:
    """Ends a piece of ``THREE`` or ``MANY`` after each topic, and stops in the first piece until the test continues."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        """Where pieces began."""
        self.held = HeldWork()

    def __call__(self, _request: bytes, begin: int, _least_bytes: int, _most_fields: int, /) -> int:
        self.begun.append(begin)
        self.held()
        return begin + TOPIC_BYTES


async def test_a_large_lookup_waits_for_no_registration() -> None:
    lookup = route_service_pb2.BatchGetTopicRoutesRequest(topics=["abc"])

    parsing = Parsing()
    requests = RequestsInPieces(TableWriter(), Worker("reader"), parsing)
    registration = asyncio.create_task(requests.parsed(pb.RegisterBrokerRequest, MANY, CONTEXT))
    await parsing.held.begun()
    requests.end_of_piece = lambda request, *_: len(request)
    async with asyncio.timeout(TIMEOUT):
        found = await requests.parsed(route_service_pb2.BatchGetTopicRoutesRequest, lookup.SerializeToString(), CONTEXT)
    assert (found, registration.done()) == (lookup, False)
    parsing.held.let_go()
    await registration


async def test_a_caller_that_goes_leaves_the_turn_and_its_request_half_parsed() -> None:
    parsing = Parsing()
    requests = RequestsInPieces(TableWriter(), Worker("reader"), parsing)
    going = asyncio.create_task(requests.parsed(pb.RegisterBrokerRequest, MANY, CONTEXT))
    await parsing.held.begun()
    going.cancel()
    await asyncio.sleep(0)  # it is told
    parsing.held.let_go()
    await asyncio.wait([going])
    assert going.cancelled()
    pieces_of_first = len(parsing.begun)
    assert await requests.parsed(pb.RegisterBrokerRequest, MANY, CONTEXT) == pb.RegisterBrokerRequest.FromString(MANY)
    assert len(parsing.begun) == pieces_of_first + len(MANY) // TOPIC_BYTES
    assert (parsing.begun[:pieces_of_first]) == [0]
