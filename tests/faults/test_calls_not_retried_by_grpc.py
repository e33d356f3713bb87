"""gRPC never makes a call of the agent again by itself: on a dead connection it would do so without pause or bound."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRWPair

import grpc
import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as pb

from broker_agent.channel import ConnectionOptions
from broker_agent.topics.slave_synchronize import CopyFailed, MasterAgent
from namesrv_common.endpoints import Endpoint
from tests.support.hostile.frames import ACK, GOAWAY, HEADERS, HOST, PING, PREFACE, SETTINGS, frame

NOTHING_DONE = bytes(8)
"""The connection ends, no error, and no call on it was looked at: gRPC's own retries take that at its word."""
SECONDS = 10.0


class Refusing:
    """A server that ends each connection at its first call, before it has looked at that, and counts calls."""

    def __init__(self, listener: socket.socket) -> None:
        self.calls = 0
        self.endpoint = Endpoint(HOST, listener.getsockname()[1])
        self._listener = listener

    def serve(self) -> None:
        """Answers connections, one after the other, until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                connection.settimeout(SECONDS)
                self._refuse(stream)

    def _refuse(self, stream: BufferedRWPair) -> None:
        """Speaks HTTP/2 until the first call."""
        if stream.read(len(PREFACE)) != PREFACE:
            return
        stream.write(frame(SETTINGS, 0, 0))
        stream.flush()
        while len(head := stream.read(9)) == 9:
            kind, flags = head[3], head[4]
            payload = stream.read(int.from_bytes(head[:3], "big"))
            if kind == HEADERS:
                self.calls += 1
                stream.write(frame(GOAWAY, 0, 0, NOTHING_DONE))
                return
            if kind in {SETTINGS, PING} and not flags & ACK:
                stream.write(frame(kind, ACK, 0, payload if kind == PING else b""))
                stream.flush()


@contextmanager
def refusing() -> Iterator[Refusing]:
    with socket.create_server((HOST, 0)) as listener:
        server = Refusing(listener)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_call_to_a_name_server_is_made_once() -> None:
    options = ConnectionOptions(1_000, 1_000, 6_000).as_grpc()
    with refusing() as server, grpc.insecure_channel(str(server.endpoint), options) as channel:
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            channel.unary_unary("/namesrv_api.v1.RegistrationService/QueryDataVersion", None, None)(
                b"", timeout=SECONDS
            )
        assert server.calls == 1


def test_a_call_to_the_masters_agent_is_made_once() -> None:
    with refusing() as server:
        master = MasterAgent(server.endpoint)
        with pytest.raises(CopyFailed, match="UNAVAILABLE"):
            next(master.list_topics(pb.ListTopicsRequest()))
        master.close()
        assert server.calls == 1
