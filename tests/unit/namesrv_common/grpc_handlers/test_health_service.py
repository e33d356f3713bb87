"""The health service: every watcher learns the last status, whatever other watchers do."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb

from namesrv_common.server.health_service import MAX_SERVICE_LENGTH, HealthService

SERVING, NOT_SERVING, UNKNOWN = (
    pb.HealthCheckResponse.SERVING,
    pb.HealthCheckResponse.NOT_SERVING,
    pb.HealthCheckResponse.SERVICE_UNKNOWN,
)


class _Context:
    code: grpc.StatusCode | None = None

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        pass


class _World:
    def __init__(self) -> None:
        self.health = HealthService()
        self.context: Any = _Context()

    def watch(self, service: str) -> Any:
        return self.health.Watch(pb.HealthCheckRequest(service=service), self.context)

    async def check(self, service: str) -> int:
        answer = await self.health.Check(pb.HealthCheckRequest(service=service), self.context)
        status: int = answer.status
        return status


async def test_a_watcher_that_takes_nothing_delays_no_other_and_gets_the_last_status() -> None:

    world = _World()
    stuck, reading = world.watch("a"), world.watch("a")
    told = [(await anext(stuck)).status]
    for status in (SERVING, NOT_SERVING, SERVING):
        world.health.set("a", status)
        told.append((await anext(reading)).status)
    world.health.enter_shutdown()
    told += [(await anext(reading)).status, (await anext(stuck)).status]
    await stuck.aclose()
    await reading.aclose()
    assert told == [UNKNOWN, SERVING, NOT_SERVING, SERVING, NOT_SERVING, NOT_SERVING]


async def test_an_open_watch_does_not_keep_its_request() -> None:

    world, request = _World(), pb.HealthCheckRequest(service="a")
    before = sys.getrefcount(request)
    watch: Any = world.health.Watch(request, world.context)
    await anext(watch)
    assert sys.getrefcount(request) == before


async def test_a_watch_of_a_name_longer_than_any_service_is_refused() -> None:

    world = _World()
    assert ([answer async for answer in world.watch("a" * (MAX_SERVICE_LENGTH + 1))]) == []
    assert world.context.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_statuses_that_are_set_during_the_shutdown_are_ignored() -> None:

    world = _World()
    world.health.set("a", SERVING)
    world.health.enter_shutdown()
    world.health.set("a", SERVING)
    assert (await world.check("a"), await world.check("")) == (NOT_SERVING, NOT_SERVING)


def test_an_unknown_service_is_not_found() -> None:
    world = _World()
    asyncio.run(world.check("unknown"))
    assert world.context.code is grpc.StatusCode.NOT_FOUND
