"""A consumer as a process of its own: opens a client channel, sends one heartbeat, then reads until it is ended.

Usage: ``client_process.py ENDPOINT CLIENT_ID GROUP``. Says ``client_ready`` on standard error.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc
from broker_agent_api.v1 import client_service_pb2 as pb
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub

from tests.support.patience import TIMEOUT


def main(endpoint: str, client_id: str, group: str) -> None:
    with grpc.insecure_channel(endpoint) as connection:
        stub = ClientServiceStub(connection)
        events: Any = stub.OpenClientChannel(pb.OpenClientChannelRequest())
        consumer = pb.ConsumerData(
            group_name=group,
            consume_type=pb.CONSUME_TYPE_PASSIVELY,
            message_model=pb.MESSAGE_MODEL_CLUSTERING,
            consume_from_where=pb.CONSUME_FROM_WHERE_LAST_OFFSET,
            subscriptions=[pb.SubscriptionData(topic="TopicTest")],
        )
        heartbeat = pb.HeartbeatRequest(
            client_id=client_id, channel_id=next(events).opened.channel_id, consumer_groups=[consumer]
        )
        stub.Heartbeat(heartbeat, timeout=TIMEOUT)
        sys.stderr.write(json.dumps({"event": "client_ready"}) + "\n")
        sys.stderr.flush()
        for _event in events:
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
