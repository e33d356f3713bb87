"""Readers that never read, and peers that stop: the others go on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TypeVar

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2

from groundwork.grpc_errors import RichError
from tests.integration.streams.filling import fill
from tests.support.programs.processes import BrokerAgentProcess, NamesrvProcess, eventually
from tests.support.secured.fleet import Place, connected

pytestmark = pytest.mark.own_server  # they are shut down, and hold what their readers have not taken

Answer = TypeVar("Answer")


def test_a_stalled_reader_that_loses_its_right_is_cut_and_told_why(place: Place) -> None:
    place.permit(broker={"register": ["DefaultCluster/*"]})
    with (
        NamesrvProcess(*place.flags("token")) as namesrv,
        connected(namesrv.endpoint, place.files("token", "broker")) as filler,
        connected(namesrv.endpoint, place.files("token", "client")) as reader,
    ):
        fill(filler)
        stream = reader.routes.StreamRouteSnapshot(route_service_pb2.StreamRouteSnapshotRequest(), timeout=60)
        next(iter(stream))
        place.permit(client={"look_up": False})
        namesrv.wait_for("open_calls_ended")
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert RichError.of(caught.value).reason == "NOT_PERMITTED"


def unless_cut(ask: Callable[[], Answer]) -> Answer | str:
    """What a call says, or that its own connection was taken for dead, which a busy machine's may be at such pings."""
    try:
        return ask()
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise
        return "cut"


def test_a_stopped_agent_is_noticed_by_its_unanswered_ping() -> None:
    pings = ("--keepalive-time-millis", "500")
    scan = ("--scan-not-active-broker-interval-millis", "0")
    with (
        NamesrvProcess(*pings, *scan) as namesrv,
        BrokerAgentProcess(str(namesrv.endpoint)) as agent,
        namesrv.connect() as client,
    ):
        eventually(lambda: unless_cut(client.addrs), lambda addrs: addrs not in ({}, "cut"))
        agent.signal(signal.SIGSTOP)
        eventually(lambda: unless_cut(client.route), lambda route: route is None)
        assert namesrv.wait_for("broker_removed")["reason"] == "CHANNEL_CLOSED"
