"""A load of many watches of one topic, read in a process of their own: ``python -m bench.watch_load``.

Says ``ready`` when each watch has its first message. Then answers each line on standard input with one of JSON: the
revisions that changes of the topic came with since the last line, and when each watch had them. Messages are decoded
only then: until a message counts as arrived, nothing is done with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack

import grpc
from namesrv_api.v1 import route_service_pb2 as pb

from bench.load import CLIENT_OPTIONS

WATCH_TOPIC_ROUTES = "/namesrv_api.v1.RouteService/WatchTopicRoutes"
STREAMS_PER_CONNECTION = 100
"""Half of what a name server permits."""

LONGEST_LIFE_SECONDS = 900.0
"""It ends by then even if whoever started it is gone."""

_OPENING = 200
"""Watches that are being opened at once."""


class Arrivals:
    """When which message came; nothing is decoded before it is asked for."""

    def __init__(self) -> None:
        self._messages: list[tuple[float, bytes]] = []

    def note(self, message: bytes) -> None:
        """A message has come."""
        self._messages.append((time.monotonic(), message))

    def take(self) -> dict[int, list[float]]:
        """By revision, when messages with changes came since this was called last."""
        messages, self._messages = self._messages, []
        arrivals: dict[int, list[float]] = {}
        for seconds, data in messages:
            message = pb.WatchTopicRoutesResponse.FromString(data)
            if message.changes:
                arrivals.setdefault(message.header.revision, []).append(seconds)
        return arrivals


async def watch(target: str, topic: str, watchers: int) -> None:
    """Watches until standard input ends."""
    arrivals, opening = Arrivals(), asyncio.Semaphore(_OPENING)
    request = pb.WatchTopicRoutesRequest(topics=[topic]).SerializeToString()
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(target, CLIENT_OPTIONS))
            for _ in range(-(-watchers // STREAMS_PER_CONNECTION))
        ]

        async def read(number: int, opened: asyncio.Event) -> None:
            call = channels[number % len(channels)].unary_stream(WATCH_TOPIC_ROUTES, None, None)(request)
            async for message in call:
                arrivals.note(message)
                opened.set()
            raise AssertionError(f"a watch has ended: {await call.code()}, {await call.details()}")

        async with asyncio.TaskGroup() as streams:

            async def start(number: int) -> asyncio.Task[None]:
                async with opening:
                    opened = asyncio.Event()
                    task = streams.create_task(read(number, opened))
                    await opened.wait()
                    return task

            tasks = await asyncio.gather(*(start(number) for number in range(watchers)))
            arrivals.take()
            print("ready", flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(arrivals.take()), flush=True)
            for task in tasks:
                task.cancel()


def main() -> None:
    """Watches, and answers."""
    parser = argparse.ArgumentParser(prog="python -m bench.watch_load")
    parser.add_argument("--target", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--watchers", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(asyncio.wait_for(watch(options.target, options.topic, options.watchers), LONGEST_LIFE_SECONDS))


if __name__ == "__main__":
    main()
