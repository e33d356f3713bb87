"""Calls from Python, and what they cost their server. Its client is slower than a server: rates are not for reading."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc

GET_TOPIC_ROUTE = "/namesrv_api.v1.RouteService/GetTopicRoute"
REGISTER_BROKER = "/namesrv_api.v1.RegistrationService/RegisterBroker"
CLIENT_OPTIONS = [
    # Otherwise all channels of a process to one target share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
_CALL_SECONDS = 30.0
_CONNECTIONS = 8
_IN_FLIGHT = 32


def open_many_files() -> None:
    """Raises the limit on open files as far as the machine permits, for this process and those that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of processes so far, user and system, all threads, also those that have ended."""
    return sum(time.clock_gettime(_cpu_clock(pid)) for pid in pids)


def _cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, as Linux numbers it (clock_getcpuclockid(3)): nanoseconds, not ticks."""
    return ~pid << 3 | 2


def send(target: str, path: str, requests: Sequence[bytes]) -> None:
    """Makes one unary call after the other, some of them at once; answers are not decoded.

    Raises:
        grpc.RpcError: A call failed.
    """
    asyncio.run(_send(target, path, requests))


async def _send(target: str, path: str, requests: Sequence[bytes]) -> None:
    async def work(call: Any, share: Iterator[bytes]) -> None:
        for request in share:
            answer = await call(request, timeout=_CALL_SECONDS)
            assert answer, "an answer has a header"

    share = iter(requests)
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(target, CLIENT_OPTIONS))
            for _ in range(_CONNECTIONS)
        ]
        calls = [channel.unary_unary(path, None, None) for channel in channels]
        async with asyncio.TaskGroup() as workers:
            for number in range(_IN_FLIGHT):
                workers.create_task(work(calls[number % _CONNECTIONS], share))
