"""The open streams of changes: opened, woken a few at a time, and ended when the name server shuts down."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from random import Random, SystemRandom

from namesrv import limits
from namesrv.app.access import FairShares
from namesrv.app.worker import FairLock
from namesrv.app.writer import run_cooperatively
from namesrv.core.changes import Change
from namesrv.core.errors import Reason, Refused, shutting_down
from namesrv.core.pace import SLICE, Slice, Sliced
from namesrv.core.state import RouteState, WarmUp
from namesrv.core.watch.hub import ChangeReader, RouteWatch, Subscription, SubscriptionChange, WatchHub
from namesrv.core.watch.messages import WatchMessages
from namesrv.engines.api import EngineCall
from namesrv_common.server.shares import MACHINE, Sharer

ITEMS_OF_A_WAKE = SLICE // 8
"""Waking the task of a reader, and its sending, costs as much as so many items of a slice."""

ITEMS_OF_A_MESSAGE = SLICE // 256
"""The same for a message that is sent without the task."""

SHARED_TOPICS = 16
"""Most pending topics of a watch whose task is not woken for them."""

BOOKMARK_SECONDS = 30
"""Period of bookmarks for a watch without changes, so that it can resume from a late revision."""

RETURNS_PER_SECOND = 1_000
"""Most readers that come back in one second after a shutdown."""

FIRST_RETURN_SECONDS = 0.1
"""The earliest return after a shutdown."""

FIRST_EXPIRY = 0.75
"""When the first watches expire, as a share of the longest time. It spreads the ends of watches opened together."""


@dataclass(slots=True, eq=False)
class WatchStream:
    """One open stream of changes."""

    number: int
    """Higher is later."""
    peer: str
    """Address of the reader."""
    call: str
    opened_at_millis: int
    reader: ChangeReader
    """Its position among the changes; a RouteWatch if it is of some topics."""
    woken: asyncio.Event
    """Set when there may be something to send."""
    engine_call: EngineCall | None = None
    """Sends messages that are the same for several streams, without their tasks. None: the engine cannot."""
    is_idle: bool = False
    """Whether its task waits to be woken, with everything sent."""

    async def idle(self) -> None:
        """Waits to be woken. The task has no message in its hands."""
        self.is_idle = True
        await self.woken.wait()
        self.is_idle = False


class WatchStreams:
    """The open streams of watches and followers. Create it inside the event loop."""

    def __init__(
        self, state: RouteState, warm_up: WarmUp, rng: Random | None = None, shares: FairShares | None = None
    ) -> None:
        """Starts without streams.

        Args:
            rng: Spreads returns after a shutdown, and the ends of watches.
            shares: Shares of callers. None: nothing else uses them.
        """
        self._rng = rng or SystemRandom()
        self._state = state
        self._shares = shares or FairShares()
        self.hub = WatchHub(state, max_pending=limits.MAX_WAITING_TOPICS)
        self.messages = WatchMessages(state, self.hub, warm_up.is_warm)
        self.on_lag: Callable[[float], object] = lambda _: None
        """Is told how many seconds a change took until the transport had it, once for each reader."""
        self._published_at: float | None = None
        """When the oldest change was published that has not been read."""
        self._streams: dict[ChangeReader, WatchStream] = {}
        """The open streams, oldest first."""
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._beginning = FairLock()
        """Held by the watch that begins: each may walk the whole change log."""
        self._ending = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        """Watches that have ended, and whose names still count."""
        state.change_log.listen(self._on_change)

    def __len__(self) -> int:
        return len(self._streams)

    @asynccontextmanager
    async def watching(
        self,
        subscription: Subscription,
        after_revision: int | None,
        peer: str,
        writer: EngineCall | None = None,
        sharer: Sharer = MACHINE,
    ) -> AsyncIterator[WatchStream]:
        """A watch of topics for as long as the context lasts, ready to be sent its first message.

        Args:
            after_revision: Begin with changes after it. None: begin with the current routes.
            writer: Sends messages shared with other watches, without the caller's task, while that is idle.

        Raises:
            OVERLOADED: Too many watches are open.
            LIMIT_EXCEEDED: The caller has too many watches, or too many names are watched, by these or by all watches.
            REVISION_COMPACTED: The change log does not reach back to the revision.
            REVISION_NOT_REACHED: It is still to come.
            SHUTTING_DOWN: The name server takes no more.
        """
        self._state.check_not_frozen()
        await self._take_names(sharer, subscription.name_count)
        woken = asyncio.Event()
        watch = RouteWatch(woken.set, subscription)
        try:
            listed = self._listed("WatchTopicRoutes", peer, watch, woken, writer)
            with self._shares.watches.holding(sharer), listed as watcher:
                async with self._beginning.held_for(sharer.name):
                    await self._read_changes()
                    await run_cooperatively(self.hub.join(watch))
                    await self._read_changes()
                    if after_revision is None:
                        await run_cooperatively(self.hub.fill(watch))
                    else:
                        await run_cooperatively(self.hub.catch_up(watch, after_revision))
                with self._expiring(watcher):
                    yield watcher
        finally:
            leaving = asyncio.create_task(self._leave(self.hub.close(watch), watch, sharer))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def resubscribe(self, watch: RouteWatch, change: SubscriptionChange, sharer: Sharer = MACHINE) -> None:
        """Changes the topics of an open watch. Its task must have no message to send.

        Raises:
            LIMIT_EXCEEDED: All watches, or those of its caller, ask for too many names.
        """
        await self._read_changes()
        await self._take_names(sharer, change.added.name_count)
        await run_cooperatively(self.hub.begin_resubscribing(watch, change))
        await self._read_changes()
        await run_cooperatively(self.hub.end_resubscribing(watch, change))
        self._shares.watched_names.give_back(sharer, change.removed.name_count)

    @contextmanager
    def following(self, call: str, peer: str, sharer: Sharer = MACHINE) -> Iterator[WatchStream]:
        """A reader of all changes for as long as the context lasts. ``call`` is the name of the call that it makes.

        Raises:
            OVERLOADED: Too many watches are open.
            LIMIT_EXCEEDED: The caller has too many watches.
            SHUTTING_DOWN: The name server takes no more.
        """
        self._state.check_not_frozen()
        woken = asyncio.Event()
        follower = ChangeReader(woken.set, revision=0)
        self.hub.follow(follower)
        try:
            listed = self._listed(call, peer, follower, woken)
            with self._shares.watches.holding(sharer), listed as watcher:
                yield watcher
        finally:
            self.hub.unfollow(follower)

    def after(self, number: int, limit: int) -> list[WatchStream]:
        """Returns at most ``limit`` streams that were opened after the one with a number, oldest first."""
        later = (watcher for watcher in self._streams.values() if watcher.number > number)
        return list(itertools.islice(later, limit))

    def events_behind(self, reader: ChangeReader) -> int:
        """Returns the number of pending topics of a watch, or of changes that a follower has not been sent."""
        return len(reader.pending) if isinstance(reader, RouteWatch) else self._state.revision - reader.revision

    async def notify_readers(self) -> None:
        """Reads changes and wakes the readers that they concern. Runs until cancelled.

        It runs in a later iteration of the event loop than the commit. So the answer to a change leaves before
        its watches are notified, unless a table is compacted in between.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._read_changes()
            # In the step that takes the readers, because a change published since the wait ended concerns them, too.
            published_at, self._published_at = self._published_at, None
            await self._notify(self.hub.take_to_wake(), published_at)

    async def _notify(self, readers: list[ChangeReader], published_at: float | None) -> None:
        """Wakes readers that have something to read, or sends it to them if that is quick."""
        together: dict[bytes, list[WatchStream]] = {}
        work = Slice()
        for reader in readers:
            # Its task may have been sending and have sent this change: then the next message would seem late.
            if reader.behind_since is None and self.events_behind(reader):
                reader.behind_since = published_at
            is_sent = self._add_message(reader, together)
            if not is_sent:
                reader.wake()
            if work.is_over(ITEMS_OF_A_MESSAGE if is_sent else ITEMS_OF_A_WAKE):
                self._send(together)
                await asyncio.sleep(0)  # these readers run now, and work that arrived during the slice runs after them
                await self._read_changes()
        self._send(together)

    def _add_message(self, reader: ChangeReader, together: dict[bytes, list[WatchStream]]) -> bool:
        """Makes the next message of a watch whose task is not needed for it; returns whether it did.

        Callers must ``_send`` in the same step.
        """
        watcher = self._streams.get(reader)
        if watcher is None or watcher.engine_call is None or not isinstance(reader, RouteWatch):
            return False
        is_free = watcher.is_idle and watcher.engine_call.is_free
        if not is_free or reader.failure is not None or len(reader.pending) > SHARED_TOPICS:
            return False
        message = self.messages.next_message(reader)
        if message is not None:
            together.setdefault(message, []).append(watcher)
            if reader.pending:  # a message was full: the rest needs the task, which waits for the client
                reader.wake()
        return True

    def _send(self, together: dict[bytes, list[WatchStream]]) -> None:
        for message, watchers in together.items():
            writers = [watcher.engine_call for watcher in watchers if watcher.engine_call is not None]
            writers[0].write_to_all(writers, message)
            for watcher in watchers:
                self.sent(watcher)
        together.clear()

    def sent(self, watcher: WatchStream) -> None:
        """A message has left for a reader: it has the changes that the reader was woken for."""
        if watcher.reader.behind_since is not None:
            self.on_lag(self._state.clock.monotonic() - watcher.reader.behind_since)
            watcher.reader.behind_since = None

    async def give_bookmarks(self) -> None:
        """Sends bookmarks to watches without changes, some each second. Runs until cancelled."""
        for part in itertools.cycle(range(BOOKMARK_SECONDS)):
            await asyncio.sleep(1.0)
            await run_cooperatively(self.hub.make_bookmarks_due(part, BOOKMARK_SECONDS))
            self._changed.set()

    async def announce_missing(self) -> None:
        """Sends watches which of their topics are absent. Callers must wait until the name server is warm."""
        await run_cooperatively(self.hub.add_absent())
        self._changed.set()

    async def close(self) -> None:
        """Ends all streams, and spreads the times of their return, so that not all readers arrive elsewhere at once."""
        longest = FIRST_RETURN_SECONDS + 1.0 + len(self._streams) / RETURNS_PER_SECOND
        work = Slice()
        for watcher in list(self._streams.values()):
            watcher.reader.failure = shutting_down(round(self._rng.uniform(FIRST_RETURN_SECONDS, longest), 3))
            watcher.woken.set()
            if work.is_over(ITEMS_OF_A_WAKE):
                await asyncio.sleep(0)

    def _on_change(self, _change: Change) -> None:
        if self._published_at is None:
            self._published_at = self._state.clock.monotonic()
        self._changed.set()

    async def _take_names(self, sharer: Sharer, count: int) -> None:
        names = self._shares.watched_names
        try:
            names.take(sharer, count)
        except Refused:
            if not self._leaving:
                raise
            await asyncio.wait(self._leaving)
            names.take(sharer, count)

    async def _leave(self, steps: Sliced[None], watch: RouteWatch, sharer: Sharer) -> None:
        """Removes the names of an ended watch from the index, for one watch at a time."""
        async with self._ending:
            await run_cooperatively(steps)
        self._shares.watched_names.give_back(sharer, watch.name_count)

    @contextmanager
    def _listed(
        self, call: str, peer: str, reader: ChangeReader, woken: asyncio.Event, writer: EngineCall | None = None
    ) -> Iterator[WatchStream]:
        opened_at_millis = self._state.clock.wall_millis()
        watcher = WatchStream(next(self._numbers), peer, call, opened_at_millis, reader, woken, writer)
        self._streams[reader] = watcher
        try:
            yield watcher
        finally:
            del self._streams[reader]

    @contextmanager
    def _expiring(self, watcher: WatchStream) -> Iterator[None]:
        """Ends a watch when it has been open for long, unless it ends before.

        Followers stay: their revisions are those of this name server, so they cannot resume at another one.
        """
        seconds = limits.MAX_WATCH_SECONDS * self._rng.uniform(FIRST_EXPIRY, 1.0)

        def expire() -> None:
            text = f"the watch has been open for {seconds:.0f} s; open it again, at any name server"
            watcher.reader.failure = watcher.reader.failure or Refused(Reason.WATCH_EXPIRED, text)
            watcher.woken.set()

        expiry = asyncio.get_running_loop().call_later(seconds, expire)
        try:
            yield
        finally:
            expiry.cancel()

    async def _read_changes(self) -> None:
        """Has the hub read all changes, for one caller at a time."""
        async with self._reading:
            await run_cooperatively(self.hub.read_changes())
