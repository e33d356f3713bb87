"""How many modules a reader has to open to follow a call: those that a real registration and a real lookup enter."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any, Self

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from namesrv.server.server import NamesrvServer
from namesrv.settings import NamesrvSettings
from tests.support.engines import LEFT_OUT
from tests.support.registrations import identity, registration

OF_A_REGISTRATION = 33
"""Most modules between a registration of 300 topics and the message of a watch. Lower it, do not raise it."""
OF_A_LOOKUP = 13
"""Most modules that a lookup enters whose answer is not cached."""
TOPICS = 300
ROUNDS = 3
"""Periodic work enters modules, too, but not in each round."""
SECONDS = 30.0


class Trace:
    """Records the modules of the name server whose functions this thread enters."""

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def __enter__(self) -> Self:
        sys.setprofile(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _entered(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(("namesrv.", "groundwork.")):
            self.modules.add(module)


async def registered_and_watched(registrations: Any, routes: Any, number: int) -> Trace:
    """The modules from the registration of a new broker to the message that a watch of its topics receives."""
    topics = [f"topic-{number}-{index:03}" for index in range(TOPICS)]
    broker = identity(f"127.0.0.1:{10_911 + number}", name=f"broker-{number}")
    watch = routes.WatchTopicRoutes(iter([pb.WatchTopicRoutesRequest(topics=topics)]))
    while not (await watch.read()).bookmark:
        pass
    with Trace() as trace:
        await registrations.RegisterBroker(registration(topics, broker))
        told = 0
        while told < TOPICS:
            told += len((await watch.read()).changes)
    return trace


async def looked_up(routes: Any, number: int) -> Trace:
    """The modules that the first lookup of a topic enters."""
    with Trace() as trace:
        answer = await routes.GetTopicRoute(pb.GetTopicRouteRequest(topic=f"topic-{number}-000"))
    assert answer.route.queue_datas
    return trace


async def entered() -> tuple[set[str], set[str]]:
    """The modules that a registration and a lookup enter in each of some rounds."""
    flags = {"listen": "127.0.0.1:0", "engine": "native", "warm_up_millis": 0, "shutdown_grace_millis": 100}
    server, stop = NamesrvServer(NamesrvSettings.load(None, flags), None), asyncio.Event()
    running = asyncio.create_task(server.run(stop))
    try:
        async with asyncio.timeout(SECONDS), grpc.aio.insecure_channel(str(server.endpoint)) as connection:
            await connection.channel_ready()
            registrations, routes = RegistrationServiceStub(connection), RouteServiceStub(connection)
            by_registrations = [await registered_and_watched(registrations, routes, number) for number in range(ROUNDS)]
            by_lookups = [await looked_up(routes, number) for number in range(ROUNDS)]
    finally:
        stop.set()
        await asyncio.wait_for(running, SECONDS)
    return (
        set.intersection(*(trace.modules for trace in by_registrations)),
        set.intersection(*(trace.modules for trace in by_lookups)),
    )


def test_calls_enter_few_modules(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("namesrv.engines.native", reason=LEFT_OUT)
    registration_modules, lookup_modules = asyncio.run(entered())
    with capsys.disabled():
        for what, modules in (("registration to a watch", registration_modules), ("lookup", lookup_modules)):
            listed = "\n".join(f"  {module}" for module in sorted(modules))
            sys.stdout.write(f"\n{what}: {len(modules)} modules\n{listed}\n")
    assert len(registration_modules) <= OF_A_REGISTRATION
    assert len(lookup_modules) <= OF_A_LOOKUP
