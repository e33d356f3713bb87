"""The calls by which operators decide, on a name server of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv.app.writer import TableWriter
from namesrv.core.errors import Reason, Refused
from namesrv.grpc_api.handlers import Context
from namesrv.storage.database import Database
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.servicers import operator_calls


class Operator:
    """A name server with a data directory and somebody who calls it."""

    def __init__(self, folder: Path | None) -> None:
        self.fleet = Fleet()
        self._folder = folder
        self.state = self.fleet.state

    def call(self, request: Message) -> Any:
        """Makes the call of a request, on a name server that is started for it and holds on to its tables."""
        name = request.DESCRIPTOR.name.removesuffix("Request")

        async def run() -> Any:
            database = Database(self._folder) if self._folder else None
            writer = TableWriter()
            calls = operator_calls(self.fleet, writer, database)
            method: Callable[[Message, Context], Coroutine[Any, Any, Any]] = getattr(calls, name)
            try:
                return await method(request, CONTEXT)
            finally:
                if database is not None:
                    await database.close(20)

        return asyncio.run(run())

    def refused(self, request: Message, reason: Reason) -> Refused:
        """The error of a call, which must not have changed anything."""
        before = self.state.revision, self.state.intents
        with refuses(reason) as caught:
            self.call(request)
        assert (self.state.revision, self.state.intents) == before
        return caught.value

    def perm(self, topic: str = "TopicTest") -> int:
        route = self.fleet.route(topic)
        assert route is not None
        return route.queue_datas[0].perm

    def listed(self) -> list[pb.Intent]:
        return list(self.call(pb.ListIntentsRequest()).intents)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)
