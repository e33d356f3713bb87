"""A reader that goes is no defect, also if its connection is lost before grpcio cancels the stream."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
from broker_agent_api.v1 import client_service_pb2
from structlog.testing import capture_logs

from broker_agent.errors import FAILURES
from groundwork.rpc_handlers import CallHandlers
from tests.support.hostile.frames import INITIAL_WINDOW_SIZE, call, hello
from tests.support.partial_services import whole

ANSWER = bytes(100)
READERS = 20
"""Readers one after the other. Whether grpcio tells first of the failed write or of the lost connection is luck."""
METHOD = client_service_pb2.DESCRIPTOR.services_by_name["ClientService"].methods_by_name["OpenClientChannel"]


class Flood:
    """Answers one call with more than its reader takes."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[None] = asyncio.Queue()
        self.closed: asyncio.Queue[None] = asyncio.Queue()

    async def OpenClientChannel(self, _request: Any, _context: Any) -> AsyncIterator[bytes]:  # noqa: N802
        self.begun.put_nowait(None)
        try:
            while True:
                yield ANSWER
        finally:
            self.closed.put_nowait(None)


class Ended:
    """Observes how calls end."""

    def __init__(self) -> None:
        self.codes: asyncio.Queue[str] = asyncio.Queue()

    def of(self, _method: str, *, streams: bool) -> Ended:
        return self

    def started(self, _metadata: object) -> None:
        pass

    def ended(self, code: grpc.StatusCode, _started: None) -> None:
        self.codes.put_nowait(code.name)


async def test_a_reader_that_goes_in_the_middle_of_a_stream_is_counted_and_is_no_defect() -> None:
    service, flood, ended = METHOD.containing_service, Flood(), Ended()
    server = grpc.aio.server()
    CallHandlers(FAILURES, 20.0, observers=(ended,)).add_service(server, service, whole(service, flood))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with capture_logs() as lines:
            for _ in range(READERS):
                async with asyncio.timeout(20):
                    with socket.create_connection(("127.0.0.1", port)) as reader:
                        reader.sendall(hello((INITIAL_WINDOW_SIZE, 0)) + call(f"/{service.full_name}/{METHOD.name}", 1))
                        await flood.begun.get()
                    await flood.closed.get()
                    assert await ended.codes.get() == "CANCELLED"
    finally:
        await server.stop(0)
    assert lines == []
