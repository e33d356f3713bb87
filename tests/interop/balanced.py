"""Looks a topic up at several name servers again and again, as a service config says.

Usage: balanced.py FILE HOST:PORT,HOST:PORT... TOPIC

For each line of standard input it prints the calls since the line before: ``{"answers": {EPOCH: number of answers},
"failures": [...]}``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import grpc.aio
from namesrv_api.v1 import route_service_pb2, route_service_pb2_grpc

CALLERS = 2
KEEPALIVE = [
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
]
MOST_FAILURES = 10
"""Bounds the list where every call fails."""


async def main(config: str, endpoints: str, topic: str) -> None:
    answers, failures = Counter[str](), list[str]()
    request = route_service_pb2.GetTopicRouteRequest(topic=topic)
    options = [("grpc.service_config", config), *KEEPALIVE]
    async with grpc.aio.insecure_channel(f"ipv4:{endpoints}", options) as connections:
        routes = route_service_pb2_grpc.RouteServiceStub(connections)

        async def call_forever() -> None:
            while True:
                try:
                    answer = await routes.GetTopicRoute(request)
                except grpc.aio.AioRpcError as error:
                    failures[MOST_FAILURES - 1 :] = [f"{error.code().name}: {error.details()}"]
                else:
                    answers[answer.header.epoch] += 1

        callers = [asyncio.create_task(call_forever()) for _ in range(CALLERS)]
        while await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(json.dumps({"answers": answers, "failures": failures}) + "\n")
            sys.stdout.flush()
            answers.clear()
            failures.clear()
        for caller in callers:
            caller.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).read_text(encoding="utf-8"), *sys.argv[2:]))
