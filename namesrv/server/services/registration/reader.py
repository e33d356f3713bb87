"""The reader of registrations: it reads each whole before it waits for the tables, so that a bad one never waits."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from namesrv_api.v1 import registration_service_pb2 as pb

from groundwork.shares import MACHINE, Sharer, Shares
from namesrv.config import limits
from namesrv.core.errors import LimitExceeded
from namesrv.core.model import Registration
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import ResultT, Sliced, run_sync
from namesrv.server.auth.fair_shares import FairShares
from namesrv.server.background.table_writer import TableWriter
from namesrv.server.services.registration import requests
from namesrv.server.services.registration.parts import RegistrationParts


class RegistrationReader:
    """Makes records of registrations. Large ones are read one at a time, in slices that take turns with the writer's.

    Several at once would each have a slice in every turn of the event loop, and a lookup would wait for all of these.
    """

    def __init__(
        self,
        manager: RouteInfoManager,
        writer: TableWriter,
        parts: RegistrationParts,
        topics: Shares | None = None,
    ) -> None:
        self._manager = manager
        self._writer = writer
        self._parts = parts
        self._turn = asyncio.Lock()
        self._topics = topics or FairShares.of().registered_topics

    def room_for(self, request: pb.RegisterBrokerRequest, sharer: Sharer = MACHINE) -> AbstractContextManager[None]:
        """Counts the topics of a request for as long as the context lasts: from before they are read until the answer.

        Raises:
            Overloaded: There are too many, with those of other requests of its caller or of all.
        """
        count = len(request.topic_configs)
        return self._topics.holding(sharer, count) if count else nullcontext()

    async def read(self, request: pb.RegisterBrokerRequest, sharer: Sharer = MACHINE) -> Registration | int:
        """Checks a request whole. Topics that do not count, as their version is held, are not read.

        Returns:
            The registration; for a part that is not the last, the number of parts staged.

        Raises:
            CallRefused: The request breaks a rule; nothing has changed, but that parts of it are not staged any more.
        """
        registration = requests.registration(request)
        self._check_live_brokers(registration)
        steps = self._whole(request, registration, sharer)
        if not (request.HasField("part") or request.body_crc32 or self._manager.reads_topics(registration)):
            return run_sync(steps)  # nearly every registration: none of its topics is looked at
        return await self._in_turn(request, steps)

    async def with_topics(self, request: pb.RegisterBrokerRequest, registration: Registration) -> Registration:
        """A registration with its topics, which did not count when it was read.

        Raises:
            InvalidField: A topic breaks a rule.
        """
        return await self._in_turn(request, self._with_topics(request, registration))

    async def _in_turn(self, request: pb.RegisterBrokerRequest, steps: Sliced[ResultT]) -> ResultT:
        topics = request.topic_configs
        if len(topics) < requests.READ_SLICE and not any(topic.HasField("mapping") for topic in topics):
            return run_sync(steps)  # one slice, which need not wait for large ones
        async with self._turn:
            return await self._writer.beside_changes(steps)

    def _whole(
        self, request: pb.RegisterBrokerRequest, registration: Registration, sharer: Sharer
    ) -> Sliced[Registration | int]:
        yield from requests.check_body_crc32(request)
        if request.HasField("part"):
            known_topics = self._manager.tables.topic_queue_table
            topics = yield from self._parts.add(registration, request, known_topics, sharer)
            return topics if isinstance(topics, int) else replace(registration, topic_configs=topics)
        if not self._manager.reads_topics(registration):
            return registration
        return (yield from self._with_topics(request, registration))

    def _with_topics(self, request: pb.RegisterBrokerRequest, registration: Registration) -> Sliced[Registration]:
        read = yield from requests.read_topics(request.topic_configs, self._manager.tables.topic_queue_table)
        return replace(registration, topic_configs=read)

    def _check_live_brokers(self, registration: Registration) -> None:
        live = self._manager.tables.broker_live_table
        if len(live) >= limits.MAX_LIVE_BROKERS and registration.live_key not in live:
            raise LimitExceeded("live brokers", len(live) + 1, limits.MAX_LIVE_BROKERS)
