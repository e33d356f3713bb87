"""Large requests in pieces: the same message, or the same refusal, as in one; and others have their turn in between."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.app.requests_in_pieces import EndOfPiece, RequestsInPieces, in_one_piece
from namesrv.app.writer import TableWriter
from namesrv.core.slices import Sliced

TOPICS = st.builds(
    route_data_pb2.TopicConfig,
    topic_name=st.text(max_size=20),
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
THREE = pb.RegisterBrokerRequest(topic_configs=[route_data_pb2.TopicConfig(topic_name=name) for name in "abc"])
TOPIC_BYTES = THREE.ByteSize() // 3


def of_native(least_bytes: int, most_fields: int = 1_000) -> EndOfPiece:
    engine = pytest.importorskip("namesrv_engine", reason="the native engine is not installed")

    def end_of_piece(request: bytes, begin: int, _least_bytes: int, _most_fields: int, /) -> int:
        end: int = engine.end_of_piece(request, begin, least_bytes, most_fields)
        return end

    return end_of_piece


def one_topic(_request: bytes, begin: int, _least_bytes: int, _most_fields: int, /) -> int:
    """The end of a piece of ``THREE``."""
    return begin + TOPIC_BYTES


def parsed(request: bytes, end_of_piece: EndOfPiece) -> pb.RegisterBrokerRequest:
    async def parse() -> pb.RegisterBrokerRequest:
        return await RequestsInPieces(TableWriter(), end_of_piece).parsed(pb.RegisterBrokerRequest, request)

    return asyncio.run(parse())


@given(REGISTRATIONS, UNKNOWN_FIELDS, REGISTRATIONS, st.integers(0, 400), st.integers(1, 10))
def test_pieces_of_any_size_are_the_message_that_was_sent_though_its_fields_come_again(
    one: pb.RegisterBrokerRequest, unknown: bytes, other: pb.RegisterBrokerRequest, least_bytes: int, most_fields: int
) -> None:
    request = one.SerializeToString() + unknown + other.SerializeToString()
    sent = pb.RegisterBrokerRequest.FromString(request)
    assert parsed(request, of_native(least_bytes, most_fields)) == sent


@given(REGISTRATIONS, st.integers(0, 400), st.binary(max_size=40), st.integers(0, 2_000))
def test_what_is_damaged_ends_in_pieces_as_in_one(
    sent: pb.RegisterBrokerRequest, least_bytes: int, damage: bytes, at: int
) -> None:
    request = sent.SerializeToString()
    damaged = request[:at] + damage + request[at + len(damage) :]
    try:
        expected = pb.RegisterBrokerRequest.FromString(damaged)
    except DecodeError:
        with pytest.raises(DecodeError):
            parsed(damaged, of_native(least_bytes))
    else:
        in_pieces = parsed(damaged, of_native(least_bytes))
        assert in_pieces.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


@pytest.mark.parametrize("end_of_piece", [in_one_piece, one_topic])
def test_without_the_native_engine_too_a_request_is_what_was_sent_and_a_damaged_one_is_refused(
    end_of_piece: EndOfPiece,
) -> None:
    request = THREE.SerializeToString()
    assert parsed(request, end_of_piece) == THREE
    assert parsed(b"", end_of_piece) == pb.RegisterBrokerRequest()
    damaged = request[:TOPIC_BYTES] + b"\xff" * TOPIC_BYTES + request[2 * TOPIC_BYTES :]
    with pytest.raises(DecodeError):
        parsed(damaged, end_of_piece)


def test_a_native_server_says_where_a_large_request_may_be_cut() -> None:
    server = pytest.importorskip("namesrv.engines.native", reason="the native engine is not installed")
    topics = [route_data_pb2.TopicConfig(topic_name=f"topic-{number}") for number in range(10_000)]
    request = pb.RegisterBrokerRequest(topic_configs=topics).SerializeToString()
    pieces = 0

    class Writer(TableWriter):
        async def interleave(self, steps: Sliced[Any]) -> Any:
            nonlocal pieces
            while True:
                pieces += 1
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value

    requests = RequestsInPieces.of(server.NativeServer, Writer())
    assert len(asyncio.run(requests.parsed(pb.RegisterBrokerRequest, request)).topic_configs) == len(topics)
    assert pieces > 5


def test_no_slice_of_a_change_follows_a_piece_at_once_and_requests_of_a_kind_follow_each_other() -> None:
    request = THREE.SerializeToString()
    events: list[str] = []

    def noted(request: bytes, begin: int, *of_piece: int) -> int:
        events.append("piece" if begin else "first piece")
        return one_topic(request, begin, *of_piece)

    def change() -> Sliced[None]:
        while len([event for event in events if event != "turn"]) < 12:
            events.append("slice")
            yield

    async def lookups() -> None:
        while True:
            events.append("turn")
            await asyncio.sleep(0)

    async def run() -> None:
        writer = TableWriter()
        requests = RequestsInPieces(writer, noted)
        async with asyncio.timeout(30):
            looking_up = asyncio.create_task(lookups())
            parsing = [asyncio.create_task(requests.parsed(pb.RegisterBrokerRequest, request)) for _ in range(2)]
            await asyncio.gather(writer.apply(change()), *parsing)
            looking_up.cancel()
        assert [await task for task in parsing] == [THREE, THREE]

    asyncio.run(run())
    pieces = [event for event in events if "piece" in event]
    assert pieces == ["first piece", "piece", "piece"] * 2
    assert all("turn" in pair for pair in itertools.pairwise(events)), "a turn of others is between any two"
    told = [event for event in events if event != "turn"]
    assert "slice" in told[told.index("first piece") : told.index("piece")]


def test_a_large_lookup_waits_for_no_registrations_in_line() -> None:
    request = THREE.SerializeToString()
    lookup = route_service_pb2.BatchGetTopicRoutesRequest(topics=["abc", "def"])

    async def run() -> list[int]:
        requests = RequestsInPieces(TableWriter(), one_topic)
        done: list[int] = []

        async def register(number: int) -> None:
            await requests.parsed(pb.RegisterBrokerRequest, request)
            done.append(number)

        registrations = [asyncio.create_task(register(number)) for number in range(10)]
        await asyncio.sleep(0)
        found = await requests.parsed(route_service_pb2.BatchGetTopicRoutesRequest, lookup.SerializeToString())
        assert found == lookup
        before = done.copy()
        await asyncio.gather(*registrations)
        return before

    async def bounded() -> list[int]:
        async with asyncio.timeout(30):
            return await run()

    assert len(asyncio.run(bounded())) < 5


def test_a_caller_that_goes_while_its_request_is_parsed_leaves_the_turn_to_the_next() -> None:
    request = THREE.SerializeToString()
    begun: list[int] = []

    def noted(request: bytes, begin: int, *of_piece: int) -> int:
        begun.append(begin)
        return one_topic(request, begin, *of_piece)

    async def run() -> pb.RegisterBrokerRequest:
        requests = RequestsInPieces(TableWriter(), noted)
        going = asyncio.create_task(requests.parsed(pb.RegisterBrokerRequest, request))
        await asyncio.sleep(0)
        assert begun == [0]
        going.cancel()
        async with asyncio.timeout(30):
            found = await requests.parsed(pb.RegisterBrokerRequest, request)
        assert going.cancelled()
        return found

    assert asyncio.run(run()) == THREE
    assert begun == [0, 0, TOPIC_BYTES, 2 * TOPIC_BYTES], "the first was parsed no further"
