"""Servicers on a state of a test, warm from the start unless told otherwise."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from namesrv.app.access import FairShares
from namesrv.app.administration import Administration
from namesrv.app.channels import ChannelStreams, StallDetector
from namesrv.app.watches import WatchStreams
from namesrv.app.worker import OWN, Worker
from namesrv.app.writer import TableWriter
from namesrv.core.snapshot import Pins
from namesrv.core.state import RouteState, WarmUp
from namesrv.grpc_api.admin import AdminServicer
from namesrv.grpc_api.registration import RegistrationServicer
from namesrv.grpc_api.route import LookupCalls, RouteServicer, TableCalls
from namesrv.grpc_api.streams import StreamCalls
from namesrv.settings import NamesrvSettings
from namesrv.storage.database import Database, MemoryDatabase
from namesrv.storage.journal import Journal
from tests.support.core_fleet import Fleet
from tests.support.patience import TIMEOUT
from tests.support.state_changes import Held

STARTED_AT = 1_700_000_000_000
"""When the name server of an operator's calls started."""


def admin_servicer(
    fleet: Fleet, database: Database | None = None, journal: Journal | None = None, watchers: WatchStreams | None = None
) -> AdminServicer:
    """What operators call at a fleet's name server, which holds on to its tables."""
    state, writer, reader = fleet.state, TableWriter(), Worker("reader")
    settings, now = NamesrvSettings.load(None, {}), fleet.clock.wall_millis
    administration = Administration(state, writer, database, settings, now)
    journal = journal or Journal(MemoryDatabase(), "", 1)
    if watchers is None:
        watchers = WatchStreams(state, WarmUp(state, 0.0))
    return AdminServicer(state, administration, journal, watchers, reader, STARTED_AT)


@asynccontextmanager
async def holding(writer: TableWriter, state: RouteState, owner: str = OWN) -> AsyncIterator[None]:
    """A change is being made for as long as the context lasts: nobody else has a turn."""
    held = Held(state)
    task = asyncio.create_task(writer.apply(held, owner))
    await held.begun()
    try:
        yield
    finally:
        held.let_go()
        await task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)


def channel_streams(fleet: Fleet, writer: TableWriter | None = None) -> ChannelStreams:
    """The open channels of a fleet's name server."""
    detector = StallDetector(fleet.clock.monotonic, fleet.state.grant_more_time, 10.0)
    return ChannelStreams(fleet.state, writer or TableWriter(), detector)


def registration_servicer(fleet: Fleet, writer: TableWriter | None = None, **options: Any) -> RegistrationServicer:
    """What brokers call at a fleet's name server."""
    writer = writer or TableWriter()
    return RegistrationServicer(fleet.state, writer, channel_streams(fleet, writer), 120_000, **options)


def table_calls(fleet: Fleet) -> TableCalls:
    """The calls that list the tables of a fleet's name server."""
    return TableCalls(fleet.state, WarmUp(fleet.state, 0.0), Worker("reader"), 0, lambda: None)


def route_servicer(
    fleet: Fleet, started_at_millis: int = 0, warm_up_seconds: float = 0.0, watchers: WatchStreams | None = None
) -> RouteServicer:
    """A servicer that answers from a fleet's name server."""
    state, clock = fleet.state, fleet.clock
    numbers, shares = itertools.count(1), FairShares()
    warm_up = WarmUp(state, warm_up_seconds)
    pins = Pins(clock.monotonic, lambda: f"pin-{next(numbers)}", pins=shares.pins, revisions=shares.pinned_revisions)
    reader = Worker("reader")
    if watchers is None:
        watchers = WatchStreams(state, warm_up)
    return RouteServicer(
        LookupCalls(state, warm_up),
        TableCalls(state, warm_up, reader, started_at_millis, lambda: None),
        StreamCalls(state, warm_up, pins, watchers, reader, shares.snapshot_streams),
    )
