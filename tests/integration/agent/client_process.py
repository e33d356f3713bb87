"""A client channel, and a consumer as a process of its own: one heartbeat, then it reads until it is ended.

Usage: ``client_process.py ENDPOINT CLIENT_ID GROUP``. Says ``client_ready`` on standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import grpc
from broker_agent_api.v1 import client_service_pb2 as pb
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub

from tests.support.fakes.agent_clients import consumer
from tests.support.patience import TIMEOUT


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


def main(endpoint: str, client_id: str, group: str) -> None:
    with grpc.insecure_channel(endpoint) as connection:
        channel = Channel(ClientServiceStub(connection), client_id)
        channel.beat(group)
        sys.stderr.write(json.dumps({"event": "client_ready"}) + "\n")
        sys.stderr.flush()
        for _event in channel.events:
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
