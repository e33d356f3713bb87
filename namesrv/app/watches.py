"""The open streams of changes: they are woken a few at a time, and ended when the name server shuts down."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from random import Random, SystemRandom

from groundwork.shares import MACHINE, Sharer
from namesrv import limits
from namesrv.app.counters import DurationCounter
from namesrv.app.fair_queue import FairLock
from namesrv.app.quotas import FairShares
from namesrv.app.writer import collecting, run_cooperatively
from namesrv.core.changes import Change
from namesrv.core.errors import Refused, shutting_down, watch_expired
from namesrv.core.policy import Clock
from namesrv.core.state import RouteState
from namesrv.core.warm_up import WarmUp
from namesrv.core.watch.hub import ChangeReader, Follower, RouteWatch, WatchHub
from namesrv.core.watch.messages import WatchMessages
from namesrv.core.watch.subscription import Subscription, SubscriptionChange
from namesrv.engines.api import EngineCall

WAKE_SLICE = 8
"""Readers whose tasks are woken before giving way: sending to so many takes a millisecond or two."""

TOLD_SLICE = 256
"""Readers that are sent a message without their tasks before giving way: a millisecond or two."""

TOLD_TOPICS = 16
"""Most changed topics of a reader whose task is not woken for them."""

BOOKMARK_SECONDS = 30
"""Period of bookmarks for a watch without changes, so that it can resume from a late revision."""

RETURNS_PER_SECOND = 1_000
"""Readers that shall come back in one second when all are told at once to go elsewhere."""

FIRST_RETURN_SECONDS = 0.1
"""The earliest."""

FIRST_EXPIRY = 0.75
"""When the first watches expire, as a share of the longest time. Those that were opened together end apart."""


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
    writer: EngineCall | None = None
    """Sends what others are sent, too, without the stream's task; None: the engine cannot."""
    is_idle: bool = False
    """Whether its task waits to be woken, with everything sent."""

    async def idle(self) -> None:
        """Waits to be woken. The task has no message in its hands."""
        self.is_idle = True
        await self.woken.wait()
        self.is_idle = False


class WatchDispatcher:
    """Opens, wakes and ends them. Must be made inside the event loop."""

    def __init__(
        self,
        state: RouteState,
        warm_up: WarmUp,
        clock: Clock,
        rng: Random | None = None,
        shares: FairShares | None = None,
    ) -> None:
        """Starts without streams.

        Args:
            rng: Spreads returns after a shutdown, and the ends of watches.
            shares: What callers hold; None: nobody else hands any out.
        """
        self._rng = rng or SystemRandom()
        self._state = state
        self._clock = clock
        self._shares = shares or FairShares.of()
        self.hub = WatchHub(state, max_pending=limits.MAX_WAITING_TOPICS)
        self.messages = WatchMessages(state, self.hub, warm_up.is_warm)
        self.lag = DurationCounter()
        """How long changes took until the transport had them, once for each reader."""
        self._published_at: float | None = None
        """When the oldest change was published that has not been read."""
        self._streams: dict[int, WatchStream] = {}
        self._by_reader: dict[ChangeReader, WatchStream] = {}
        """Those that can be told without their tasks."""
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._beginning = FairLock()
        """Held by the watch that begins: each may walk the whole change log."""
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
            after_revision: Begin with what changed after it; None: begin with the current routes.
            writer: Sends what others are sent, too, without the caller's task, while that is idle.

        Raises:
            OVERLOADED: Too many watches are open.
            LIMIT_EXCEEDED: Those of its caller are too many, or they ask for too many names, or all together do.
            REVISION_COMPACTED: The change log does not reach back to the revision.
            REVISION_NOT_REACHED: It is still to come.
            SHUTTING_DOWN: The name server takes no more.
        """
        self._check_not_frozen()
        names = self._shares.watched_names
        await self._take_names(sharer, subscription.name_count)
        woken = asyncio.Event()
        watch = RouteWatch(woken.set, subscription)
        try:
            listed = self._listed("WatchTopicRoutes", peer, watch, woken)
            with self._shares.watches.holding(sharer), listed as watcher:
                if writer is not None:
                    watcher.writer = writer
                    self._by_reader[watch] = watcher
                async with self._beginning.held_for(sharer.name):
                    await self._read_changes()
                    await run_cooperatively(collecting(self.hub.join(watch)))
                    await self._read_changes()
                    if after_revision is None:
                        await run_cooperatively(self.hub.fill(watch))
                    else:
                        await run_cooperatively(self.hub.catch_up(watch, after_revision))
                with self._expiring(watcher):
                    yield watcher
        finally:
            self._by_reader.pop(watch, None)
            self.hub.close(watch, lambda: names.give_back(sharer, watch.name_count))

    async def resubscribe(self, watch: RouteWatch, change: SubscriptionChange, sharer: Sharer = MACHINE) -> None:
        """Changes the topics of an open watch. Its task must have no message to send.

        Raises:
            LIMIT_EXCEEDED: All watches, or those of its caller, ask for too many names.
        """
        await self._read_changes()
        await self._take_names(sharer, change.added.name_count)
        await run_cooperatively(collecting(self.hub.begin_resubscribing(watch, change)))
        await self._read_changes()
        await run_cooperatively(collecting(self.hub.end_resubscribing(watch, change)))
        self._shares.watched_names.give_back(sharer, change.removed.name_count)

    @contextmanager
    def following(self, call: str, peer: str, sharer: Sharer = MACHINE) -> Iterator[WatchStream]:
        """A reader of all changes for as long as the context lasts. ``call`` is the name of the call that it makes.

        Raises:
            OVERLOADED: Too many watches are open.
            LIMIT_EXCEEDED: Those of its caller are too many.
            SHUTTING_DOWN: The name server takes no more.
        """
        self._check_not_frozen()
        woken = asyncio.Event()
        follower = Follower(woken.set, 0)
        self.hub.follow(follower)
        try:
            listed = self._listed(call, peer, follower, woken)
            with self._shares.watches.holding(sharer), listed as watcher:
                yield watcher
        finally:
            self.hub.unfollow(follower)

    def after(self, number: int, limit: int) -> list[WatchStream]:
        """The watchers that were opened after the one with a number, oldest first, at most so many."""
        # Numbers rise, and the dictionary keeps the order in which they came.
        later = (watcher for watcher in self._streams.values() if watcher.number > number)
        return list(itertools.islice(later, limit))

    def events_behind(self, reader: ChangeReader) -> int:
        """Returns the number of pending topics of a watch, or of changes that a follower has not been sent."""
        return len(reader.pending) if isinstance(reader, RouteWatch) else self._state.revision - reader.revision

    async def tell_changes(self) -> None:
        """Reads changes and wakes the readers that they concern. Runs until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._read_changes()
            # In the step that takes the readers: a change that came meanwhile concerns them, too.
            published_at, self._published_at = self._published_at, None
            await self._tell(self.hub.take_to_wake(), published_at)

    async def _tell(self, readers: list[ChangeReader], published_at: float | None) -> None:
        """Tells readers that there is something to read, or sends it to them if that is quick."""
        together: dict[bytes, list[WatchStream]] = {}
        done = 0.0
        for reader in readers:
            # Its task may have been sending and have sent this change: then the next message would seem late.
            if reader.behind_since is None and self.events_behind(reader):
                reader.behind_since = published_at
            watcher = self._by_reader.get(reader)
            if watcher is not None and self._makes_message(watcher, together):
                done += 1 / TOLD_SLICE
            else:
                reader.wake()
                done += 1 / WAKE_SLICE
            if done >= 1:
                self._send(together)
                done = 0.0
                await asyncio.sleep(0)  # these readers run now, and work that came in meanwhile runs after them
                await self._read_changes()
        self._send(together)

    def _makes_message(self, watcher: WatchStream, together: dict[bytes, list[WatchStream]]) -> bool:
        """Makes the next message for a reader whose task is not needed for it; ``_send`` must follow in this step."""
        reader, writer = watcher.reader, watcher.writer
        assert isinstance(reader, RouteWatch), "others are not told so"
        assert writer is not None, "others are not told so"
        quick = watcher.is_idle and writer.is_free and reader.failure is None and len(reader.pending) <= TOLD_TOPICS
        if not quick:
            return False
        message = self.messages.next_message(reader)
        if message is not None:
            together.setdefault(message, []).append(watcher)
            if reader.pending:  # what had no room in it needs the task, which waits for the client
                reader.wake()
        return True

    def _send(self, together: dict[bytes, list[WatchStream]]) -> None:
        for message, watchers in together.items():
            writers = [watcher.writer for watcher in watchers if watcher.writer is not None]
            writers[0].write_to_all(writers, message)
            for watcher in watchers:
                self.sent(watcher)
        together.clear()

    def sent(self, watcher: WatchStream) -> None:
        """A message has left for a reader: it has the changes that the reader was woken for."""
        if watcher.reader.behind_since is not None:
            self.lag.add(self._clock.monotonic() - watcher.reader.behind_since)
            watcher.reader.behind_since = None

    async def give_bookmarks(self) -> None:
        """Sends bookmarks to watches without changes, some each second. Runs until cancelled."""
        for part in itertools.cycle(range(BOOKMARK_SECONDS)):
            await asyncio.sleep(1.0)
            await run_cooperatively(self.hub.make_bookmarks_due(part, BOOKMARK_SECONDS))
            self._changed.set()

    async def announce_missing(self) -> None:
        """The name server is warm: tells watches which of their topics are not there."""
        await run_cooperatively(self.hub.add_absent())
        self._changed.set()

    async def close(self) -> None:
        """Tells all readers to go elsewhere, each after another time, so that they do not all arrive there at once."""
        longest = FIRST_RETURN_SECONDS + 1.0 + len(self._streams) / RETURNS_PER_SECOND
        for count, watcher in enumerate(list(self._streams.values()), 1):
            watcher.reader.failure = shutting_down(round(self._rng.uniform(FIRST_RETURN_SECONDS, longest), 3))
            watcher.woken.set()
            if count % WAKE_SLICE == 0:
                await asyncio.sleep(0)

    def _on_change(self, _change: Change) -> None:
        if self._published_at is None:
            self._published_at = self._clock.monotonic()
        self._changed.set()

    async def _take_names(self, sharer: Sharer, count: int) -> None:
        names = self._shares.watched_names
        try:
            names.take(sharer, count)
        except Refused:
            if not self._state.leftovers:
                raise
            await run_cooperatively(self._state.leftovers.clear_up())  # names of watches that have ended still count
            names.take(sharer, count)

    def _check_not_frozen(self) -> None:
        if self._state.frozen:
            raise shutting_down()

    @contextmanager
    def _listed(self, call: str, peer: str, reader: ChangeReader, woken: asyncio.Event) -> Iterator[WatchStream]:
        number = next(self._numbers)
        watcher = WatchStream(number, peer, call, self._clock.wall_millis(), reader, woken)
        self._streams[number] = watcher
        try:
            yield watcher
        finally:
            del self._streams[number]

    @contextmanager
    def _expiring(self, watcher: WatchStream) -> Iterator[None]:
        """Ends a watch when it has been open for long, unless it ends before.

        Followers stay: their revisions are those of this name server, so they cannot resume at another one.
        """
        seconds = limits.MAX_WATCH_SECONDS * self._rng.uniform(FIRST_EXPIRY, 1.0)

        def expire() -> None:
            watcher.reader.failure = watcher.reader.failure or watch_expired(seconds)
            watcher.woken.set()

        expiry = asyncio.get_running_loop().call_later(seconds, expire)
        try:
            yield
        finally:
            expiry.cancel()

    async def _read_changes(self) -> None:
        async with self._reading:
            await run_cooperatively(self.hub.read_changes())
