"""A bounded number of look-ups on one server: ``python -m bench.load``. Prints one line of JSON.

Runs in a process of its own, so that its CPU time is not the server's. Answers are not decoded: this measures the
server, and every microsecond of the client is one that the server does not get on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from namesrv_api.v1 import route_service_pb2

from bench.workload import Profile

GET_TOPIC_ROUTE = "/namesrv_api.v1.RouteService/GetTopicRoute"
REGISTER_BROKER = "/namesrv_api.v1.RegistrationService/RegisterBroker"
CLIENT_OPTIONS = [
    # Otherwise all channels of a process to one target share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
_CALL_SECONDS = 30.0
_WARM_UP_CALLS = 1_000
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int | str) -> float:
    """CPU time of a process so far, user and system, all threads."""
    # The second field is a name in brackets and may have spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


async def look_up(target: str, server_pid: int, requests: list[bytes], connections: int, in_flight: int) -> Any:
    """Sends each request once.

    Args:
        target: The server, host:port.
        server_pid: Its process, for its CPU time.
        requests: Encoded GetTopicRouteRequests.
        connections: Number of connections.
        in_flight: Calls under way at once, all connections together.

    Returns:
        Seconds, CPU seconds of both sides, and the latency of each call in ascending order.
    """
    latencies: list[float] = []

    async def work(call: Any, share: Iterator[bytes]) -> None:
        for request in share:
            began = time.perf_counter()
            answer = await call(request, timeout=_CALL_SECONDS)
            latencies.append(time.perf_counter() - began)
            assert answer, "an answer has a header"

    async def work_all(share: Iterator[bytes]) -> None:
        async with asyncio.TaskGroup() as workers:
            for number in range(in_flight):
                workers.create_task(work(calls[number % connections], share))

    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(target, CLIENT_OPTIONS))
            for _ in range(connections)
        ]
        calls = [channel.unary_unary(GET_TOPIC_ROUTE, None, None) for channel in channels]
        await work_all(iter(requests[:_WARM_UP_CALLS]))
        latencies.clear()
        server_before, client_before = cpu_seconds(server_pid), cpu_seconds("self")
        began = time.perf_counter()
        await work_all(iter(requests))
        seconds = time.perf_counter() - began
        server, client = cpu_seconds(server_pid) - server_before, cpu_seconds("self") - client_before
    return {"seconds": seconds, "server_cpu": server, "client_cpu": client, "latencies": sorted(latencies)}


def main() -> None:
    """Runs the look-ups and prints the outcome."""
    parser = argparse.ArgumentParser(prog="python -m bench.load")
    parser.add_argument("--target", required=True)
    parser.add_argument("--server-pid", type=int, required=True)
    for option in ("calls", "connections", "in-flight", "topics", "brokers", "width"):
        parser.add_argument(f"--{option}", type=int, required=True)
    options = parser.parse_args()
    profile = Profile(options.topics, options.brokers, options.width)
    requests = [
        route_service_pb2.GetTopicRouteRequest(topic=topic).SerializeToString()
        for topic in profile.topic_names(options.calls)
    ]
    outcome = asyncio.run(look_up(options.target, options.server_pid, requests, options.connections, options.in_flight))
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
