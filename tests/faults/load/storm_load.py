"""A load of many brokers or watchers in one process, which come back as agents and clients do.

Usage: ``python -m tests.faults.load.storm_load brokers ENDPOINT FIRST COUNT TOPICS``
or ``watchers ENDPOINT BROKERS COUNT``.
Whenever all of them are there in one epoch, a line of JSON on standard error says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
from namesrv_api.v1 import registration_service_pb2, route_service_pb2
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from tests.support.registrations import data_version, identity, topic_config

LONGEST_LIFE_SECONDS = 1_800.0
"""It ends by then even if whoever started it is gone."""
BACK_WITHIN_SECONDS = 5.0
"""Lost connections are opened again spread over this time, as agents do."""
REGISTER_SECONDS = 300.0
STREAMS_PER_CONNECTION = 100
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0))


def own_topic(broker: int) -> str:
    """The topic that one broker alone has."""
    return f"own-{broker}"


class Crowd:
    """Counts who is there in which epoch, and says when all are."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._there: dict[str, set[int]] = {}
        self.wrong_empties = 0
        """Routes that were said to be absent although their brokers lived all the time."""

    def is_there(self, number: int, epoch: str) -> None:
        """One is there."""
        members = self._there.setdefault(epoch, set())
        members.add(number)
        if len(members) == self._size:
            self.say("all_there", epoch=epoch, wrong_empties=self.wrong_empties)

    @staticmethod
    def say(event: str, **fields: object) -> None:
        """A line for whoever started this."""
        sys.stderr.write(json.dumps({"event": event, "monotonic": time.monotonic(), **fields}) + "\n")
        sys.stderr.flush()


async def _again_and_again(come: AsyncIterator[None]) -> None:
    async for _ in come:
        await asyncio.sleep(random.uniform(0.0, BACK_WITHIN_SECONDS))


async def _broker(endpoint: str, number: int, topics: bytes, crowd: Crowd) -> AsyncIterator[None]:
    """Registers over a channel and holds it until it is lost; again whenever it is asked to go on."""
    who = identity(f"10.9.{number >> 8}.{number & 255}:10911", name=f"broker-{number}")
    while True:
        with contextlib.suppress(grpc.RpcError):
            async with grpc.aio.insecure_channel(endpoint, OPTIONS) as connection:
                stub = RegistrationServiceStub(connection)
                opened: Any = stub.OpenChannel(registration_service_pb2.OpenChannelRequest(holder=who.broker_name))
                first = await opened.read()
                own = registration_service_pb2.RegisterBrokerRequest(
                    broker=who,
                    data_version=data_version(),
                    channel_id=first.opened.channel_id,
                    topic_configs=[topic_config(own_topic(number))],
                )
                register = connection.unary_unary("/namesrv_api.v1.RegistrationService/RegisterBroker", None, None)
                data = await register(own.SerializeToString() + topics, timeout=REGISTER_SECONDS)
                answer = registration_service_pb2.RegisterBrokerResponse.FromString(data)
                crowd.is_there(number, answer.header.epoch)
                while await opened.read():  # at the end comes grpc.aio.EOF, which is false
                    pass
        yield


async def _watchers(endpoint: str, numbers: range, brokers: int, crowd: Crowd) -> None:
    """Watches over one connection, each the topic of one broker; each goes on for itself when its stream is lost."""
    async with grpc.aio.insecure_channel(endpoint, OPTIONS) as connection:
        stub = RouteServiceStub(connection)
        watches = (_again_and_again(_watch(stub, number, own_topic(number % brokers), crowd)) for number in numbers)
        await asyncio.gather(*watches)


async def _watch(stub: RouteServiceStub, number: int, topic: str, crowd: Crowd) -> AsyncIterator[None]:
    request = route_service_pb2.WatchTopicRoutesRequest(topics=[topic])
    had_route = False
    while True:
        with contextlib.suppress(grpc.RpcError):
            call: Any = stub.WatchTopicRoutes(iter([request]))
            async for message in call:
                for change in message.changes:
                    if change.HasField("route"):
                        had_route = True
                        crowd.is_there(number, message.header.epoch)
                    else:
                        crowd.wrong_empties += had_route
        yield


async def brokers(endpoint: str, first: str, count: str, topic_count: str) -> None:
    """Brokers, each with a connection of its own."""
    rows = [topic_config(f"shared-{number:05}") for number in range(int(topic_count) - 1)]
    topics = registration_service_pb2.RegisterBrokerRequest(topic_configs=rows).SerializeToString()
    crowd = Crowd(int(count))
    numbers = range(int(first), int(first) + int(count))
    await asyncio.gather(*(_again_and_again(_broker(endpoint, number, topics, crowd)) for number in numbers))


async def watchers(endpoint: str, broker_count: str, count: str) -> None:
    """Watchers, a hundred on a connection."""
    crowd = Crowd(int(count))
    shares = [
        range(begin, min(begin + STREAMS_PER_CONNECTION, int(count)))
        for begin in range(0, int(count), STREAMS_PER_CONNECTION)
    ]
    await asyncio.gather(*(_watchers(endpoint, share, int(broker_count), crowd) for share in shares))


def main(kind: str, *arguments: str) -> None:
    """Runs until ended."""
    programs: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"brokers": brokers, "watchers": watchers}
    work = programs[kind](*arguments)
    with contextlib.suppress(TimeoutError):
        asyncio.run(asyncio.wait_for(work, LONGEST_LIFE_SECONDS))


if __name__ == "__main__":
    main(*sys.argv[1:])
