"""A flood of calls of one class is refused over the wire, and calls of the other classes are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_service_pb2

from groundwork.grpc_errors import PUSHBACK_KEY, RichError
from groundwork.health_service import HealthService
from namesrv.app.quotas import FairShares
from namesrv.engines.factory import build_server
from namesrv.grpc_api.handlers import handlers_of_server
from namesrv.server.listener import add_services
from namesrv.settings import NamesrvSettings
from tests.support.engines import require_native
from tests.support.partial_services import whole

CALLS = {
    "lookup": ("/namesrv_api.v1.RouteService/GetTopicRoute", route_service_pb2.GetTopicRouteRequest()),
    "registration": (
        "/namesrv_api.v1.RegistrationService/BrokerHeartbeat",
        registration_service_pb2.BrokerHeartbeatRequest(),
    ),
    "administration": ("/namesrv_api.v1.AdminService/ListIntents", admin_service_pb2.ListIntentsRequest()),
}
WATCH = "/namesrv_api.v1.RouteService/WatchTopicRoutes"
SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (route_service_pb2, "RouteService"),
        (registration_service_pb2, "RegistrationService"),
        (admin_service_pb2, "AdminService"),
    )
)
MOST = 3
LIST_SERVICES = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()


class Slow:
    """A part of all services whose calls take until they may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.begun = asyncio.Semaphore(0)

    async def _answer(self, _request: Any, _context: Any) -> bytes:
        self.begun.release()
        await self.may_end.wait()
        return b""

    GetTopicRoute = BrokerHeartbeat = ListIntents = _answer

    async def WatchTopicRoutes(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        self.begun.release()
        await self.may_end.wait()
        yield b""


@pytest.mark.parametrize("flooded", [*CALLS, "stream"])
def test_a_class_of_calls_beyond_its_bound_is_refused_and_the_others_go_on(flooded: str) -> None:
    asyncio.run(_flood(flooded))


def test_open_calls_of_health_and_reflection_are_limited_for_each_caller() -> None:
    asyncio.run(_probe())


async def _probe() -> None:
    require_native()
    settings = NamesrvSettings.load(None, {"listen": "127.0.0.1:0"})
    server: Any = build_server(settings)
    shares = FairShares.of(probes=2, reflections=1)
    add_services(server, settings, (), HealthService(), observers=(), authorizer=None, shares=shares)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as connection, asyncio.timeout(20):
        watch: Any = connection.unary_stream("/grpc.health.v1.Health/Watch", None, None)
        reflect: Any = connection.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", None, None)
        open_calls = [watch(b""), watch(b""), reflect()]
        for call in open_calls[:2]:
            assert await call.read()
        await open_calls[2].write(LIST_SERVICES)
        assert await open_calls[2].read()
        for past in (watch(b""), reflect()):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await past.read()
            assert RichError.of(refused.value).reason == "OVERLOADED"
            trailers: Any = refused.value.trailing_metadata()
            assert dict(trailers)[PUSHBACK_KEY] == "1000"
        for call in open_calls:
            call.cancel()
        answer = b""
        while not answer:  # the server learns of the cancelled calls in a moment
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await watch(b"").read()
    await server.stop(0)


async def _flood(flooded: str) -> None:
    require_native()
    settings = NamesrvSettings.load(None, {"listen": "127.0.0.1:0"})
    server, slow = build_server(settings), Slow()
    shares = FairShares.of(lookups=MOST, registrations=MOST, admin_calls=MOST, streams=MOST)
    handlers = handlers_of_server(20.0, shares=shares)
    for service in SERVICES:
        handlers.add_service(server, service, whole(service, slow))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as connection:

        def call(kind: str) -> Any:
            if kind == "stream":
                return connection.unary_stream(WATCH, None, None)(b"", timeout=20).read()
            path, request = CALLS[kind]
            return connection.unary_unary(path, None, None)(request.SerializeToString(), timeout=20)

        async with asyncio.timeout(20):
            under_way = [asyncio.ensure_future(call(flooded)) for _ in range(MOST)]
            for _ in range(MOST):
                await slow.begun.acquire()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(flooded)
            error = RichError.of(refused.value)
            assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert error.retry_after_seconds
            others = [asyncio.ensure_future(call(kind)) for kind in (*CALLS, "stream") if kind != flooded]
            for _ in others:
                await slow.begun.acquire()
            slow.may_end.set()
            assert {bytes(answer) for answer in await asyncio.gather(*under_way, *others)} == {b""}
            assert bytes(await call(flooded)) == b"", "whoever has ended makes room"
    await server.stop(0)
