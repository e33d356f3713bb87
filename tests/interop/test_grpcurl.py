"""grpcurl, which has nothing but the address, describes and makes calls by reflection. Skipped where Go is missing."""

from __future__ import annotations

import json

import pytest

from namesrv.server.listener import SERVICES
from tests.interop.programs import INSTALL_SECONDS, Programs
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import registration

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)


def told(grpcurl: Programs, *arguments: str) -> str:
    """What grpcurl prints, in plaintext."""
    done = grpcurl.run("grpcurl", "-plaintext", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_grpcurl_lists_describes_and_calls(grpcurl: Programs, namesrv: NamesrvProcess, client: Client) -> None:
    client.registration.RegisterBroker(registration(), timeout=20)
    address, call = str(namesrv.endpoint), "namesrv_api.v1.RouteService.GetTopicRoute"

    services = told(grpcurl, address, "list").split()
    assert {*(service.full_name for service in SERVICES), "grpc.reflection.v1.ServerReflection"} <= set(services)
    assert "rpc GetTopicRoute ( .namesrv_api.v1.GetTopicRouteRequest )" in told(grpcurl, address, "describe", call)
    described = told(grpcurl, address, "describe")  # of each service that is listed
    assert [service for service in services if f"{service} is a service" not in described] == []
    answer = json.loads(told(grpcurl, "-d", '{"topic": "TopicTest"}', address, call))
    assert [queues["broker_name"] for queues in answer["route"]["queue_datas"]] == ["broker-a"]
