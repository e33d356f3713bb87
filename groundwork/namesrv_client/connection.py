"""What both clients stand on: how a connection behaves, and the calls of the contract by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from namesrv_api.v1 import admin_service_pb2, route_service_pb2

from groundwork.connections.channels import Options

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Largest message that is accepted: a full batch of routes has 4 MiB, and the names beside it less."""

SERVICES: tuple[ServiceDescriptor, ...] = (
    route_service_pb2.DESCRIPTOR.services_by_name["RouteService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
)
"""What programs that read and administer call of a name server."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How a connection behaves. Times are in seconds; None leaves one to gRPC."""

    connect_seconds: float | None = None
    """Longest time of one attempt to connect."""
    first_backoff_seconds: float | None = None
    """Pause after the first attempt that failed."""
    longest_backoff_seconds: float | None = None
    """Longest pause between two attempts; gRPC's own is two minutes."""
    keepalive_seconds: float | None = None
    """How often a ping goes out while a call is open, and how long its answer may take; None: no pings."""
    shared: bool = True
    """Whether connections of this process to one name server are one, with one flow control and one backoff."""
    service_config: str | None = None
    """gRPC's service config, such as one with retries; None: gRPC repeats nothing."""

    @property
    def options(self) -> Options:
        """The same as gRPC's options of a channel."""
        millis: dict[str, float | None] = {
            # This one is, in spite of its name, the time that one attempt to connect may take.
            "grpc.min_reconnect_backoff_ms": self.connect_seconds,
            "grpc.initial_reconnect_backoff_ms": self.first_backoff_seconds,
            "grpc.max_reconnect_backoff_ms": self.longest_backoff_seconds,
            "grpc.keepalive_time_ms": self.keepalive_seconds,
            "grpc.keepalive_timeout_ms": self.keepalive_seconds,
            # Without it gRPC takes 60 s more to notice a dead peer, whatever the keepalive timeout.
            "grpc.http2.ping_timeout_ms": self.keepalive_seconds,
        }
        options: list[tuple[str, int | str]] = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
        options += [(name, int(seconds * 1000)) for name, seconds in millis.items() if seconds is not None]
        if self.keepalive_seconds is not None:
            options.append(("grpc.http2.max_pings_without_data", 0))
        if not self.shared:
            options.append(("grpc.use_local_subchannel_pool", 1))
        if self.service_config is None:
            options.append(("grpc.enable_retries", 0))
        else:
            options.append(("grpc.service_config", self.service_config))
        return options


PLAIN = ConnectionSettings()
"""For a call now and then: all is left to gRPC."""


class CallTable:
    """The calls of some services on one channel, made when they are first wanted."""

    def __init__(self, channel: grpc.Channel | grpc.aio.Channel, services: Sequence[ServiceDescriptor]) -> None:
        self._channel = channel
        self._methods = {method.name: method for service in services for method in service.methods}
        self._calls: dict[tuple[str, object], Any] = {}

    def get(self, name: str, read: Callable[[bytes], Any] | None = None) -> Any:
        """What makes a call of the contract; it takes request, timeout and metadata.

        Args:
            name: The call's name, such as ``GetTopicRoute``.
            read: Makes an answer of its bytes; None: as the contract says.
        """
        key = (name, read)
        if key not in self._calls:
            method = self._methods[name]
            make = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
            self._calls[key] = make(_path(method), _encoded, read or GetMessageClass(method.output_type).FromString)
        return self._calls[key]


def turn_page(request: Message, answer: Message) -> bool:
    """Has the request ask for the page after this answer; whether there is one."""
    token = answer.next_page_token  # type: ignore[attr-defined]
    request.page_token = token  # type: ignore[attr-defined]
    return bool(token)


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _encoded(request: Message) -> bytes:
    return request.SerializeToString()
