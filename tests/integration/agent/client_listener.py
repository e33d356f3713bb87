"""The agent's listener for clients, and channels that a test holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import client_service_pb2 as pb
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub

from broker_agent.clients.limits import KEEPALIVE_SECONDS, SLOW_READER_SECONDS
from broker_agent.clients.managers import ClientManagers
from broker_agent.clients.server import ClientServer
from broker_agent.registration import BrokerState
from namesrv_common.endpoints import Endpoint
from tests.support.fakes.agent_clients import consumer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually

ANY_PORT = Endpoint("127.0.0.1", 0)
BROKER = BrokerState("C", "broker-a", 1, "127.0.0.1:10911", None, 6)
GROUP = "consumers"


class Listener:
    """The listener with its managers, in this process."""

    def __init__(self, keepalive_seconds: float, slow_reader_seconds: float) -> None:
        self.managers = ClientManagers()
        self.server = ClientServer(
            ANY_PORT,
            self.managers,
            lambda: BROKER,
            keepalive_seconds=keepalive_seconds,
            slow_reader_seconds=slow_reader_seconds,
        )
        self.server.start()

    @contextmanager
    def connect(self, *more: tuple[str, int]) -> Iterator[ClientServiceStub]:
        # Otherwise all clients of this process would share one connection, and its flow control.
        options = [("grpc.use_local_subchannel_pool", 1), *more]
        with grpc.insecure_channel(str(self.server.endpoint), options) as connection:
            yield ClientServiceStub(connection)

    def ids(self, group: str = GROUP) -> list[str]:
        with self.managers.lock:
            return self.managers.consumers.client_ids(group)


@contextmanager
def listening(
    *, keepalive_seconds: float = KEEPALIVE_SECONDS, slow_reader_seconds: float = SLOW_READER_SECONDS
) -> Iterator[Listener]:
    listener = Listener(keepalive_seconds, slow_reader_seconds)
    try:
        yield listener
    finally:
        listener.server.stop()
        eventually(lambda: not any(thread.name.startswith("broker-agent") for thread in threading.enumerate()))


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as started:
        yield started


@pytest.fixture
def stub(listener: Listener) -> Iterator[ClientServiceStub]:
    with listener.connect() as connected:
        yield connected


class Channel:
    """A client channel that a test holds."""

    def __init__(self, stub: ClientServiceStub, client_id: str = "client-1") -> None:
        self.stub = stub
        self.client_id = client_id
        self.events: Any = stub.OpenClientChannel(pb.OpenClientChannelRequest())
        self.id = str(self.next().opened.channel_id)

    def next(self) -> pb.OpenClientChannelResponse:
        event: pb.OpenClientChannelResponse = next(self.events)
        return event

    def beat(self, *groups: str, producers: Sequence[str] = ()) -> pb.HeartbeatResponse:
        request = pb.HeartbeatRequest(
            client_id=self.client_id,
            channel_id=self.id,
            language="PYTHON",
            producer_groups=[pb.ProducerData(group_name=group) for group in producers],
            consumer_groups=[consumer(group) for group in groups],
        )
        response: pb.HeartbeatResponse = self.stub.Heartbeat(request, timeout=TIMEOUT)
        return response

    def told(self) -> str:
        return str(self.next().consumer_ids_changed.consumer_group)
