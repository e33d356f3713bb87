"""ChannelStreams: what is remembered of a channel, and for how long."""

from __future__ import annotations

import asyncio

from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.app.channels import ChannelStreams
from namesrv.app.stall_detector import StallDetector
from namesrv.app.writer import TableWriter
from tests.support.core_fleet import Fleet


async def test_a_channel_that_was_handed_over_and_closed_here_is_forgotten_once_it_has_ended(fleet: Fleet) -> None:

    detector = StallDetector(fleet.clock.monotonic, fleet.heartbeats.grant_more_time, 10.0)
    streams = ChannelStreams(fleet.state, TableWriter(), detector)
    removing = asyncio.create_task(streams.remove_brokers_of_ended())
    async with asyncio.timeout(20), streams.open("an agent") as (channel_id, events):
        fleet.heartbeats.hand_over_channel(channel_id)
        streams.close(channel_id, pb.ChannelClosing.REASON_IDLE)
        assert (await events.get()).closing.reason == pb.ChannelClosing.REASON_IDLE
        assert streams._doubts
    while not streams._ended.empty():  # noqa: ASYNC110 - nobody tells that its end has been taken up
        await asyncio.sleep(0)
    assert not streams._doubts
    removing.cancel()
