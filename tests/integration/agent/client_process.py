"""A consumer as a process of its own: opens a client channel, sends one heartbeat, then reads until it is ended.

Usage: ``client_process.py ENDPOINT CLIENT_ID GROUP``. Says ``client_ready`` on standard error.
"""

from __future__ import annotations

import json
import sys

import grpc
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub

from tests.integration.agent.client_listener import Channel


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
