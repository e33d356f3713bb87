"""What clients of gRPC do by themselves: the targets that they take, their retries and their pings."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from groundwork.grpc_errors import PUSHBACK_KEY, RichError
from tests.support.hostile.frames import ACK, GOAWAY, PING, PREFACE, SETTINGS, frame
from tests.support.programs.processes import Client, NamesrvProcess

SECONDS = 20.0
"""A deadline that no test waits for."""
POLICY = {
    "maxAttempts": 2,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.01s",
    "backoffMultiplier": 1,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
CONFIG = {"methodConfig": [{"name": [{"service": "namesrv_api.v1.RouteService"}], "retryPolicy": POLICY}]}


PINGS = 5
"""gRPC cuts a connection at its fourth ping that comes too early."""


@pytest.mark.parametrize(
    "target",
    [
        "ipv4:127.0.0.1:{port},127.0.0.1:{port}",
        "ipv4:127.0.0.1:1,127.0.0.1:{port}",
        "dns:///LOCALHOST:{port}",
    ],
)
def test_a_target_of_grpcs_own_client_is_served(namesrv: NamesrvProcess, target: str) -> None:
    with grpc.insecure_channel(target.format(port=namesrv.endpoint.port)) as connection:
        assert Client(connection).route() is None


def test_the_authority_of_a_unix_socket_behind_a_proxy_is_served(namesrv: NamesrvProcess) -> None:
    # grpc-core sends it for unix:/tmp/name server.sock.
    options = [("grpc.default_authority", "tmp%2Fname%20server.sock")]
    with grpc.insecure_channel(str(namesrv.endpoint), options) as connection:
        assert Client(connection).route() is None


def test_a_retry_of_grpc_itself_waits_as_long_as_the_error_says() -> None:
    options = [("grpc.service_config", json.dumps(CONFIG))]
    with (
        NamesrvProcess("--warm-up-millis", "600000") as server,
        grpc.insecure_channel(str(server.endpoint), options) as channel,
    ):
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            RouteServiceStub(channel).GetTopicRoute(pb.GetTopicRouteRequest(topic="T"), timeout=SECONDS)
        elapsed = time.monotonic() - began
    error = RichError.of(caught.value)
    assert (error.reason, error.retry_after_seconds) == ("REGISTRY_WARMING", 0.2)
    trailers: Any = caught.value.trailing_metadata()
    assert dict(trailers)[PUSHBACK_KEY] == "200"
    assert elapsed >= 0.2


def frames_within(sock: socket.socket, seconds: float) -> list[tuple[int, int]]:
    """Kinds and flags of the frames that come in a time; raises ConnectionError at the end of the connection."""
    sock.settimeout(seconds)
    unread = b""
    frames: list[tuple[int, int]] = []
    while True:
        try:
            came = sock.recv(65_536)
        except TimeoutError:
            return frames
        if not came:
            raise ConnectionError("the server has closed the connection")
        unread += came
        while len(unread) >= 9 and len(unread) >= (end := 9 + int.from_bytes(unread[:3], "big")):
            frames.append((unread[3], unread[4]))
            unread = unread[end:]


def test_a_client_may_ping_twice_a_second(namesrv: NamesrvProcess) -> None:
    with socket.create_connection(namesrv.endpoint) as sock:
        sock.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
        for _ in range(PINGS):
            sock.sendall(frame(PING, 0, 0, bytes(8)))
            frames = frames_within(sock, 0.5)
            assert (PING, ACK) in frames
            assert GOAWAY not in [kind for kind, _ in frames]
