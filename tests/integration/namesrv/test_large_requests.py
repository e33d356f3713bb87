"""Large requests to a whole name server on the native engine: parsed in pieces, those of streams, too."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from namesrv.app.requests_in_pieces import PIECE_BYTES
from namesrv.server.server import NamesrvServer
from namesrv.settings import NamesrvSettings
from tests.support.engines import LEFT_OUT
from tests.support.registrations import registration

SECONDS = 30.0
TOPICS = [f"topic-{number:06}" for number in range(8_000)]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each piece that was parsed begins."""
    native = pytest.importorskip("namesrv.engines.native", reason=LEFT_OUT)
    begun: list[int] = []
    end_of_piece = native.end_of_piece

    def noted(request: bytes, begin: int, *of_piece: int) -> int:
        begun.append(begin)
        end: int = end_of_piece(request, begin, *of_piece)
        return end

    monkeypatch.setattr(native, "end_of_piece", noted)
    return begun


async def answered() -> tuple[bool, int]:
    """Whether a registration of the topics changed anything, and how many routes a watch of them is told."""
    flags = {"listen": "127.0.0.1:0", "engine": "native", "warm_up_millis": 0, "shutdown_grace_millis": 100}
    server, stop = NamesrvServer(NamesrvSettings.load(None, flags), None), asyncio.Event()
    running = asyncio.create_task(server.run(stop))
    try:
        async with asyncio.timeout(SECONDS), grpc.aio.insecure_channel(str(server.endpoint)) as connection:
            registered = await RegistrationServiceStub(connection).RegisterBroker(
                registration(TOPICS), wait_for_ready=True
            )
            told = 0
            async for answer in RouteServiceStub(connection).WatchTopicRoutes(
                iter([pb.WatchTopicRoutesRequest(topics=TOPICS)])
            ):
                told += len(answer.changes)
                if told == len(TOPICS):
                    break
            return registered.changed, told
    finally:
        stop.set()
        await asyncio.wait_for(running, SECONDS)


def test_a_registration_and_a_watch_of_many_topics_are_parsed_in_pieces(begun: list[int]) -> None:
    assert asyncio.run(answered()) == (True, len(TOPICS))
    firsts = [index for index, begin in enumerate(begun) if begin == 0]
    assert len(firsts) == 2
    for first, after in zip(firsts, [*firsts[1:], len(begun)], strict=True):
        assert after - first >= len("".join(TOPICS)) // PIECE_BYTES
