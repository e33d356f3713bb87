"""One copy of a leader's tables: what becomes of its readers, and of what they hold, when the next copy is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.app.lookup_clients import LookupClients
from namesrv.app.operators import SettingsInForce
from namesrv.app.quotas import FairShares
from namesrv.app.worker import Worker
from namesrv.core.errors import Reason
from namesrv.core.replica import ReplicaTables
from namesrv.core.state import NamesrvIdentity
from namesrv.server.following import Copy
from namesrv.settings import NamesrvSettings
from tests.support.virtual_clock import VirtualClock
from tests.unit.namesrv.worlds.watching import CONTEXT, Messages, Requests, failure_of, next_of


class Place:
    """What copies that follow each other share."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.settings = NamesrvSettings.load(None, {})
        self.shares = FairShares.of()

    def copy(self, epoch: str) -> Copy:
        """A copy of a leader that has no broker yet."""
        return Copy(
            ReplicaTables(NamesrvIdentity("copy", epoch), self.clock),
            self.clock,
            SettingsInForce(self.settings, self.settings),
            reader=Worker("reader"),
            shares=self.shares,
            product_env=None,
            clients=LookupClients(lambda: None),
            started_at_millis=0,
        )


def watch(copy: Copy, *topics: str) -> Messages:
    stream: Messages = copy.route["WatchTopicRoutes"](Requests(pb.WatchTopicRoutesRequest(topics=topics)), CONTEXT)
    return stream


def run(steps: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await steps(Place())

    asyncio.run(main())


def test_names_that_were_watched_at_a_copy_do_not_count_once_it_has_retired_and_its_watches_have_ended() -> None:
    async def steps(place: Place) -> None:
        before, after = place.copy("1"), place.copy("2")
        serving = asyncio.create_task(before.run())
        async with aclosing(watch(before, "T1", "T2")) as ended, aclosing(watch(before, "T3")) as open_still:  # type: ignore[type-var]
            await next_of(ended)
            await next_of(open_still)
            await ended.aclose()  # type: ignore[attr-defined]
            await before.retire(after.tables.state)
            serving.cancel()
            assert (await failure_of(open_still)).reason == Reason.EPOCH_CHANGED
        assert {kind: shares.used for kind, shares in place.shares.by_kind().items() if shares.used} == {}

    run(steps)


def test_a_watch_that_begins_at_a_copy_which_retires_meanwhile_is_told_to_begin_again() -> None:
    async def steps(place: Place) -> None:
        before, after = place.copy("1"), place.copy("2")
        await before.retire(after.tables.state)
        async with aclosing(watch(before, "T1")) as stream:  # type: ignore[type-var]
            assert (await failure_of(stream)).reason == Reason.EPOCH_CHANGED

    run(steps)
