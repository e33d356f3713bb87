"""The list of watchers: its pages, and how far each of them lags behind."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from namesrv import limits
from namesrv.app import watches
from namesrv.app.writer import run_cooperatively
from tests.support.core_fleet import B
from tests.unit.namesrv.worlds.watching import next_of, serving


async def test_watchers_are_listed_oldest_first_with_what_waits_for_them() -> None:
    async with (
        serving() as server,
        server.watch("T1", "T2", topic_prefixes=["T"]) as first,
        server.watch("T3") as second,
    ):
        await next_of(first)
        server.fleet.clock.advance(5)
        await next_of(second)
        server.fleet.register(B, 1, ())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rows = (await server.listed()).watchers
        assert [(row.topic_count, list(row.topic_prefixes)) for row in rows] == [(2, ["T"]), (1, [])]
        assert [(row.revision, row.events_behind) for row in rows] == [(1, 2), (1, 0)]
        assert rows[1].opened_at_millis - rows[0].opened_at_millis == 5_000
        assert {row.peer for row in rows} == {"ipv4:127.0.0.1:50000"}


async def test_pages_of_watchers_go_on_where_the_last_one_ended_also_if_it_has_gone() -> None:
    async with serving() as server, server.watch("T1") as first, server.watch("T1", "T2") as second:
        await next_of(first)
        await next_of(second)
        page = await server.listed(page_size=1)
        assert len(page.watchers) == 1
        await first.aclose()  # type: ignore[attr-defined]
        last = await server.listed(page_size=1, page_token=page.next_page_token)
        assert ([row.topic_count for row in last.watchers], last.next_page_token) == ([2], "")


async def test_a_page_has_at_most_400_watchers() -> None:
    async with serving(max_watchers=1_000) as server:
        with ExitStack() as stack:
            for _ in range(limits.MAX_WATCHER_PAGE_SIZE + 1):
                stack.enter_context(server.watchers.following("StreamRouteSnapshot", "peer"))
            page = await server.listed(page_size=limits.MAX_WATCHER_PAGE_SIZE + 1)
            assert len(page.watchers) == limits.MAX_WATCHER_PAGE_SIZE
            rest = await server.listed(page_token=page.next_page_token)
            assert [(row.call, row.topic_count) for row in rest.watchers] == [("StreamRouteSnapshot", 0)]


async def test_the_lag_of_a_watch_is_from_the_first_change_that_waited_until_its_message_has_left() -> None:
    async with serving() as server, server.watch("T1") as stream:
        await next_of(stream)
        waiting = asyncio.ensure_future(next_of(stream))
        for _ in range(5):  # until the watch is idle
            await asyncio.sleep(0)
        server.fleet.unregister()
        await waiting
        server.fleet.clock.advance(1.5)  # the transport takes so long
        assert server.watchers.lag.total == 0.0
        asking = asyncio.ensure_future(next_of(stream))
        await asyncio.sleep(0)
        assert server.watchers.lag.total == 1.5
        assert server.watchers.lag.buckets()[-1] == ("+Inf", 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_bookmark_is_not_a_lag() -> None:
    async with serving() as server, server.watch("T1") as stream:
        await next_of(stream)
        for part in range(watches.BOOKMARK_SECONDS):
            await run_cooperatively(server.watchers.hub.make_bookmarks_due(part, watches.BOOKMARK_SECONDS))
        asking = asyncio.ensure_future(next_of(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        assert server.watchers.lag.buckets()[-1] == ("+Inf", 0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
