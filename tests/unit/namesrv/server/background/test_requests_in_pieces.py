"""Large requests in pieces: the same message, or the same refusal, as in one; and others have their turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.core.slices import Sliced
from namesrv.server.background.requests_in_pieces import EndsOfPieces, RequestsInPieces, in_one_piece
from namesrv.server.background.table_writer import TableWriter

TOPICS = st.builds(
    route_data_pb2.TopicConfig,
    topic_name=st.text(max_size=20),
    read_queue_nums=st.none() | st.integers(0, 2**31 - 1),
    perm=st.none() | st.integers(-1, 7),
)
REGISTRATIONS = st.builds(
    pb.RegisterBrokerRequest,
    broker=st.none() | st.builds(route_data_pb2.BrokerIdentity, cluster_name=st.text(max_size=300)),
    topic_configs=st.lists(TOPICS, max_size=30),
    channel_id=st.none() | st.text(max_size=20),
    heartbeat_timeout_millis=st.none() | st.integers(0, 2**63 - 1),
)


def of_native(least: int) -> EndsOfPieces:
    engine = pytest.importorskip("namesrv_engine", reason="the native engine is not installed")

    def ends(request: bytes, _least: int) -> Sequence[int]:
        found: Sequence[int] = engine.ends_of_pieces(request, least)
        return found

    return ends


def parsed(request: bytes, ends_of_pieces: EndsOfPieces) -> pb.RegisterBrokerRequest:
    async def parse() -> pb.RegisterBrokerRequest:
        return await RequestsInPieces(TableWriter(), ends_of_pieces).parsed(pb.RegisterBrokerRequest, request)

    return asyncio.run(parse())


@given(REGISTRATIONS, st.integers(0, 400))
def test_pieces_of_any_size_are_the_message_that_was_sent(sent: pb.RegisterBrokerRequest, least: int) -> None:
    request = sent.SerializeToString()
    assert parsed(request, of_native(least)) == sent
    assert parsed(request, in_one_piece) == sent


@given(REGISTRATIONS, st.integers(0, 400), st.binary(max_size=40), st.integers(0, 2_000))
def test_what_is_damaged_ends_in_pieces_as_in_one(
    sent: pb.RegisterBrokerRequest, least: int, damage: bytes, at: int
) -> None:
    request = sent.SerializeToString()
    damaged = request[:at] + damage + request[at + len(damage) :]
    try:
        expected = pb.RegisterBrokerRequest.FromString(damaged)
    except DecodeError:
        with pytest.raises(DecodeError):
            parsed(damaged, of_native(least))
    else:
        in_pieces = parsed(damaged, of_native(least))
        assert in_pieces.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_requests_are_parsed_one_after_another_with_slices_of_changes_in_between() -> None:
    sent = pb.RegisterBrokerRequest(topic_configs=[route_data_pb2.TopicConfig(topic_name=name) for name in "abc"])
    request = sent.SerializeToString()
    size_of_topic = len(request) // 3
    events: list[str] = []

    def ends(request: bytes, _least: int) -> Sequence[int]:
        events.append("request")
        return range(size_of_topic, len(request) + 1, size_of_topic)

    def change() -> Sliced[None]:
        while len(events) < 8:
            events.append("slice")
            yield

    async def run() -> None:
        writer = TableWriter()
        requests = RequestsInPieces(writer, ends)
        parsing = [asyncio.create_task(requests.parsed(pb.RegisterBrokerRequest, request)) for _ in range(2)]
        await asyncio.gather(writer.apply(change()), *parsing)
        assert [await task for task in parsing] == [sent, sent]

    asyncio.run(run())
    first, second = (index for index, event in enumerate(events) if event == "request")
    assert events[first:second].count("slice") >= 3, "a slice after each piece of the first"


def test_a_caller_that_goes_while_its_request_is_parsed_leaves_the_turn_to_the_next() -> None:
    sent = pb.RegisterBrokerRequest(channel_id="c")
    request = sent.SerializeToString()

    async def run() -> pb.RegisterBrokerRequest:
        requests = RequestsInPieces(TableWriter(), lambda request, _: [0] * 1_000 + [len(request)])
        going = asyncio.create_task(requests.parsed(pb.RegisterBrokerRequest, request))
        await asyncio.sleep(0)
        going.cancel()
        async with asyncio.timeout(30):
            return await requests.parsed(pb.RegisterBrokerRequest, request)

    assert asyncio.run(run()) == sent
