"""NamesrvChannel: a defect of one channel is followed by another channel."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb

from broker_agent.channel import LONGEST_WAIT_SECONDS, NamesrvChannel, Reopening
from broker_agent.timing import Timing
from namesrv_common.endpoints import Endpoint

OPENED = pb.OpenChannelResponse(opened=pb.ChannelOpened(channel_id="1"))
EVENT = pb.OpenChannelResponse(min_broker_id_changed=pb.MinBrokerIdChanged())


class Stream(list[pb.OpenChannelResponse]):
    def cancel(self) -> None:
        return


class Stub:
    """A name server whose second channel has no defect."""

    def __init__(self, *, refuses_first: bool) -> None:
        self._refuses = refuses_first
        self._opened = 0
        self.again = threading.Event()

    def OpenChannel(self, _request: pb.OpenChannelRequest, metadata: object) -> Stream:  # noqa: N802 - the contract's name
        self._opened += 1
        if self._opened == 2:
            self.again.set()
        if self._refuses and self._opened == 1:
            raise ValueError("Cannot invoke RPC on closed channel!")
        return Stream([OPENED, EVENT])


class Listener:
    """A listener that fails at events."""

    def channel_opened(self) -> None: ...

    def channel_ready(self) -> None: ...

    def channel_ended(self, why: str, *, was_open: bool) -> None: ...

    def channel_event(self, event: pb.OpenChannelResponse) -> None:
        raise KeyError(str(event))


@pytest.mark.parametrize("refuses_first", [False, True])
def test_a_defect_of_a_channel_does_not_end_its_thread(refuses_first: bool) -> None:
    stub, timing = Stub(refuses_first=refuses_first), Timing()
    channel = NamesrvChannel(
        Endpoint.parse("127.0.0.1:9876"),
        cast(Any, stub),
        "test",
        Listener(),
        reopening=Reopening(LONGEST_WAIT_SECONDS, timing),
        timing=timing,
        changed=threading.Condition(),
    )
    channel.open()
    try:
        assert stub.again.wait(20)
    finally:
        channel.close()
    assert channel.id is None
