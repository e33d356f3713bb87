"""ClientService: what an open channel of a client keeps."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from broker_agent_api.v1 import client_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from broker_agent.clients.client_service import ClientServicer
from broker_agent.clients.managers import ClientManagers
from tests.support.calls_from_nowhere import CONTEXT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


def test_an_open_client_channel_does_not_keep_its_request() -> None:
    async def run() -> tuple[int, int]:
        servicer = ClientServicer(ClientManagers(), route_data_pb2.BrokerIdentity)
        request = pb.OpenClientChannelRequest()
        before = sys.getrefcount(request)
        stream = servicer.OpenClientChannel(request, CONTEXT)
        async with aclosing(cast("AsyncGenerator[pb.OpenClientChannelResponse]", stream)):
            await anext(stream)
            return before, sys.getrefcount(request)

    before, while_open = asyncio.run(run())
    assert while_open == before
