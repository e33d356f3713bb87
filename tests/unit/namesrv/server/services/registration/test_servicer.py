"""RegistrationService: what a call says that names no channel where it needs one."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.app.channels import ChannelStreams
from namesrv.app.stall_detector import StallDetector
from namesrv.app.writer import TableWriter
from namesrv.core.errors import Reason
from namesrv.grpc_api.registration import RegistrationServicer
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@pytest.fixture
def servicer() -> RegistrationServicer:
    fleet = Fleet()
    stall_detector = StallDetector(fleet.clock.monotonic, fleet.heartbeats.grant_more_time, 10.0)
    channels = ChannelStreams(fleet.state, TableWriter(), stall_detector)
    return RegistrationServicer(fleet.state, TableWriter(), channels, 120_000)


def test_an_open_channel_does_not_keep_its_request(servicer: RegistrationServicer) -> None:
    async def run() -> tuple[int, int]:
        request = pb.OpenChannelRequest(holder="a broker")
        before = sys.getrefcount(request)
        async with aclosing(
            cast("AsyncGenerator[pb.OpenChannelResponse]", servicer.OpenChannel(request, CONTEXT))
        ) as stream:
            await anext(stream)
            return before, sys.getrefcount(request)

    before, while_open = asyncio.run(run())
    assert while_open == before


def test_a_handover_without_a_channel_is_told_that_it_needs_one(servicer: RegistrationServicer) -> None:
    with refuses(Reason.INVALID_FIELD) as caught:
        asyncio.run(servicer.HandOverChannel(pb.HandOverChannelRequest(), CONTEXT))
    assert caught.value.text == "channel_id: is missing; a handover is of a channel"
