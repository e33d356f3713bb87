"""Another environment: name servers that are real gRPC servers on loopback, in the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError
from namesrv.app.cluster_test import (
    ClusterTest,
    asked_by_cluster_test,
)
from tests.support.virtual_clock import VirtualClock

ROUTE_SERVICE = pb.DESCRIPTOR.services_by_name["RouteService"]


PROMPT_SECONDS = 20.0
"""A deadline that no test waits for."""


def route_of(name: str) -> route_data_pb2.TopicRouteData:
    """A route that tells who answered."""
    return route_data_pb2.TopicRouteData(broker_datas=[route_data_pb2.BrokerData(broker_name=name)])


class FakeNamesrv:
    """A name server that has one topic, named like itself, and answers as told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[pb.BatchGetTopicRoutesRequest] = []
        self.seconds_given: list[float] = []
        self.from_cluster_test: list[bool] = []
        self.has = {name}
        self.warming: set[str] = set()
        self.error: RichError | None = None
        self.raw: bytes | None = None
        self.lets = asyncio.Event()
        self.lets.set()
        self.asked = asyncio.Event()
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self.endpoint = Endpoint("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        handlers = {"BatchGetTopicRoutes": grpc.unary_unary_rpc_method_handler(self._batch_get_topic_routes)}
        service = grpc.method_handlers_generic_handler(ROUTE_SERVICE.full_name, handlers)
        self._server.add_generic_rpc_handlers((service,))

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _batch_get_topic_routes(self, encoded: bytes, context: Any) -> bytes:
        request = pb.BatchGetTopicRoutesRequest.FromString(encoded)
        self.requests.append(request)
        self.seconds_given.append(context.time_remaining())
        self.from_cluster_test.append(asked_by_cluster_test(context))
        self.asked.set()
        await self.lets.wait()
        if self.error is not None:
            await context.abort_with_status(self.error.status())
        return self.raw if self.raw is not None else self._answer(request).SerializeToString()

    def _answer(self, request: pb.BatchGetTopicRoutesRequest) -> pb.BatchGetTopicRoutesResponse:
        answer = pb.BatchGetTopicRoutesResponse()
        for topic in request.topics:
            if topic in self.has:
                answer.routes.add(topic=topic, route=route_of(self.name))
            elif topic in self.warming:
                answer.topics_warming.append(topic)
            else:
                answer.topics_not_found.append(topic)
        return answer


class Nowhere(FakeNamesrv):
    """An address at which nobody listens, but somebody did."""

    async def start(self) -> None:
        await super().start()  # one that never started keeps its port open
        await self.stop()


class Env:
    """A product environment of some name servers."""

    def __init__(self, *namesrvs: FakeNamesrv, timeout_seconds: float = PROMPT_SECONDS, max_lookups: int = 10) -> None:
        self.namesrvs = namesrvs
        self.clock = VirtualClock()
        endpoints = [namesrv.endpoint for namesrv in namesrvs]
        self.product = ClusterTest(endpoints, self.clock.monotonic, timeout_seconds, max_lookups)

    async def route(self, topic: str, zone_name: str | None = None) -> bytes | None:
        return await self.product.route(topic, zone_name)

    async def routes(self, *topics: str) -> dict[str, bytes | None]:
        return await self.product.routes(topics, None)

    def asked(self) -> list[int]:
        """How often each name server was asked."""
        return [len(namesrv.requests) for namesrv in self.namesrvs]


def run(steps: Callable[[Env], Awaitable[None]], make: Callable[[], Env]) -> None:
    """Runs steps in an environment whose name servers are up."""

    async def started_and_stopped() -> None:
        env = make()
        for namesrv in env.namesrvs:
            await namesrv.start()
        try:
            async with asyncio.timeout(60):
                await steps(env)
        finally:
            await env.product.close()
            for namesrv in env.namesrvs:
                namesrv.lets.set()
                await namesrv.stop()

    asyncio.run(started_and_stopped())
