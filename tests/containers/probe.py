"""Run inside the engine's network: waits until every name server routes a topic as expected, prints how.

    python probe.py TOPIC EXPECTED_BROKER_IDS SECONDS ENDPOINT...

EXPECTED_BROKER_IDS is a list such as ``0,1``; it is empty where the topic should have no broker. Prints one JSON
object: for each endpoint the first answer as expected. Exits with 1, and prints what it last got, if one of them never
answers so.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import grpc
from namesrv_api.v1 import route_service_pb2, route_service_pb2_grpc

PERIOD_SECONDS = 0.02


def ask(stub: route_service_pb2_grpc.RouteServiceStub, topic: str) -> dict[str, Any]:
    """A topic's brokers by id and its queues, or the error."""
    try:
        answer = stub.GetTopicRoute(route_service_pb2.GetTopicRouteRequest(topic=topic), timeout=2)
    except grpc.RpcError as error:
        return {"error": error.code().name, "brokers": {}}
    route = answer.route
    return {
        "namesrv": answer.header.namesrv_name,
        "brokers": {str(b.broker_id): b.broker_addr for data in route.broker_datas for b in data.broker_addrs},
        "queues": {data.broker_name: [data.read_queue_nums, data.write_queue_nums] for data in route.queue_datas},
    }


def main() -> int:
    """Runs the program; returns its exit code."""
    topic, expected_text, seconds, *endpoints = sys.argv[1:]
    expected = set(filter(None, expected_text.split(",")))
    deadline = time.monotonic() + float(seconds)
    stubs = {
        endpoint: route_service_pb2_grpc.RouteServiceStub(grpc.insecure_channel(endpoint)) for endpoint in endpoints
    }
    pending, answers = dict(stubs), dict[str, dict[str, Any]]()
    while pending and time.monotonic() < deadline:
        for endpoint, stub in list(pending.items()):
            answers[endpoint] = ask(stub, topic)
            unreachable = answers[endpoint].get("error") in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
            if set(answers[endpoint]["brokers"]) == expected and not unreachable:
                del pending[endpoint]
        time.sleep(PERIOD_SECONDS)
    sys.stdout.write(json.dumps(answers))
    return 1 if pending else 0


if __name__ == "__main__":
    sys.exit(main())
