"""Changed permits end the open streams of callers that lost their right, and no others: real servers and clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import registration_service_pb2, route_service_pb2

from namesrv_common.client.channels import ClientFiles
from namesrv_common.grpc_errors import RichError
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.secured.certificates import Authority
from tests.support.secured.fleet import LIVE_SECONDS, Place, administer, connected, register

WATCH = route_service_pb2.WatchTopicRoutesRequest(topics=["TopicTest"])
FOLLOW = route_service_pb2.StreamRouteSnapshotRequest(follow=True)
CHANNEL = registration_service_pb2.OpenChannelRequest(holder="test")

STREAMS: dict[str, tuple[str, Callable[[Client], Any]]] = {
    "watch": ("client", lambda client: client.routes.WatchTopicRoutes(iter([WATCH]), timeout=LIVE_SECONDS)),
    "follow": ("client", lambda client: client.routes.StreamRouteSnapshot(FOLLOW, timeout=LIVE_SECONDS)),
    "channel": ("broker", lambda client: client.registration.OpenChannel(CHANNEL, timeout=LIVE_SECONDS)),
}
"""By name: the caller, and the call that opens the stream."""

LOST: dict[str, tuple[dict[str, Any], grpc.StatusCode, str]] = {
    "the token": ({"token_sha256": []}, grpc.StatusCode.UNAUTHENTICATED, "NOT_AUTHENTICATED"),
    "the right": (
        {"look_up": False, "administer": False, "register": []},
        grpc.StatusCode.PERMISSION_DENIED,
        "NOT_PERMITTED",
    ),
}
"""What a caller loses, and the error that its streams end with."""

MANY = 40
"""Connections whose certificates an engine thread cannot check in one pass."""


def opened(client: Client, name: str) -> Any:
    """A stream of that name, once it has begun."""
    stream = STREAMS[name][1](client)
    next(stream)
    return stream


def error_of(stream: Any) -> RichError:
    """The error that an open stream ends with."""
    with pytest.raises(grpc.RpcError) as raised:
        for _ in stream:
            pass
    return RichError.of(raised.value)


@pytest.mark.parametrize("lost", LOST)
def test_streams_end_when_their_caller_loses(place: Place, lost: str) -> None:
    change, code, reason = LOST[lost]
    everybody = {"client": change, "broker": change, "admin": change}
    with NamesrvProcess(*place.flags("token")) as server, ExitStack() as stack:
        streams = {
            name: opened(stack.enter_context(connected(server.endpoint, place.files("token", caller))), name)
            for name, (caller, _) in STREAMS.items()
        }
        place.permit(**everybody)
        for name, stream in streams.items():
            error = error_of(stream)
            assert (error.code, error.reason, error.domain) == (code, reason, "namesrv.dev"), name
        assert server.wait_for("open_calls_ended")["count"] == len(STREAMS)


def test_streams_of_unchanged_callers_go_on(place: Place) -> None:
    with (
        NamesrvProcess(*place.flags("token")) as server,
        connected(server.endpoint, place.files("token", "client")) as revoked,
        connected(server.endpoint, place.files("token", "broker")) as broker,
    ):
        ended, kept, channel = opened(revoked, "watch"), opened(broker, "watch"), broker.open_channel()
        place.permit(client={"look_up": False})
        assert error_of(ended).reason == "NOT_PERMITTED"
        assert register(broker, channel_id=channel.id) == "OK"
        assert any(change.HasField("route") for message in kept for change in message.changes)


def test_a_channel_ends_with_the_right_to_register_its_broker(place: Place) -> None:
    with (
        NamesrvProcess(*place.flags("token")) as server,
        connected(server.endpoint, place.files("token", "broker")) as broker,
        connected(server.endpoint, place.files("token", "client")) as client,
    ):
        channel: Any = broker.registration.OpenChannel(CHANNEL, timeout=LIVE_SECONDS)
        assert register(broker, channel_id=next(channel).opened.channel_id) == "OK"
        place.permit(broker={"register": ["DefaultCluster/broker-b"]})
        error = error_of(channel)
        assert (error.reason, error.metadata["names"]) == ("NOT_PERMITTED", "DefaultCluster/broker-a")
        eventually(client.route, lambda route: route is None, LIVE_SECONDS)


def test_streams_of_an_authority_that_is_replaced_end(place: Place, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", "Other CA")
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(place.authority.path.read_bytes() + other.path.read_bytes())
    pair = other.sign("admin of the other", ["admin.example"])
    flags = (*place.flags("TLS"), "--tls-client-ca", str(authorities))
    with (
        NamesrvProcess(*flags) as server,
        connected(server.endpoint, ClientFiles(place.authority.path, *pair)) as admin,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(connected(server.endpoint, place.files("mTLS", "client"))) for _ in range(MANY)]
        ended, kept = [opened(client, "watch") for client in clients], opened(admin, "watch")
        authorities.write_bytes(other.path.read_bytes())
        for stream in ended:
            error = error_of(stream)
            assert (error.code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, "NOT_AUTHENTICATED")
        assert server.wait_for("client_certificate_revoked")["peer"].startswith("ipv4:127.0.0.1:")
        assert administer(admin) == "OK"
        kept.cancel()
