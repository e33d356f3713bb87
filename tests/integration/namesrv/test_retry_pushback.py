"""Clients of gRPC that retry by themselves wait as long as an error asks for."""

from __future__ import annotations

import json
import time
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from groundwork.grpc_errors import PUSHBACK_KEY, RichError
from tests.support.programs.processes import NamesrvProcess

SECONDS = 20.0
"""A deadline that no test waits for."""
POLICY = {
    "maxAttempts": 2,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.01s",
    "backoffMultiplier": 1,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
CONFIG = {"methodConfig": [{"name": [{"service": "namesrv_api.v1.RouteService"}], "retryPolicy": POLICY}]}


def test_a_retry_of_grpc_itself_waits_as_long_as_the_error_says() -> None:
    options = [("grpc.service_config", json.dumps(CONFIG))]
    with (
        NamesrvProcess("--warm-up-millis", "600000") as server,
        grpc.insecure_channel(str(server.endpoint), options) as channel,
    ):
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            RouteServiceStub(channel).GetTopicRoute(pb.GetTopicRouteRequest(topic="T"), timeout=SECONDS)
        elapsed = time.monotonic() - began
    error = RichError.of(caught.value)
    assert (error.reason, error.retry_after_seconds) == ("REGISTRY_WARMING", 0.2)
    trailers: Any = caught.value.trailing_metadata()
    assert dict(trailers)[PUSHBACK_KEY] == "200"
    assert elapsed >= 0.2
