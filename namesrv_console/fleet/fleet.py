"""All name servers of a console, and who waits for news of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc

from groundwork.grpc_errors import CallError, RichError
from groundwork.namesrv_client import Calls
from namesrv_console.fleet.observation import Observation
from namesrv_console.fleet.observer import Observer, Timing

ValueT = TypeVar("ValueT")


class Fleet:
    """The observers of all name servers, run together, and one version of all that they saw.

    Nobody queues anything here: whoever waits learns that there is a later version, however many there were.
    """

    def __init__(self, servers: Sequence[Calls], timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self.servers = tuple(servers)
        self.version = 0
        """Raised by every observation that differs from the one before."""
        self._news = asyncio.Event()
        self.observers = tuple(Observer(server, self._tell, self.timing) for server in self.servers)

    @property
    def seen(self) -> tuple[Observation, ...]:
        """What is known of each, in the order they were named."""
        return tuple(observer.seen for observer in self.observers)

    @property
    def group_names(self) -> frozenset[str]:
        """Names of all clusters and broker groups that were seen."""
        keys = {key[:2] for view in self.seen if view.tables for key in view.tables.lives}
        return frozenset(name for key in keys for name in key)

    async def each(self, ask: Callable[[Calls], Awaitable[ValueT]]) -> list[ValueT | CallError]:
        """Every name server's answer or failure, asked at the same time, in the order they were named.

        One that did not answer when it was asked last is not asked: nobody waits for it again.
        """

        async def answer(observer: Observer) -> ValueT | CallError:
            seen, server = observer.seen, observer.server
            if seen.asked and not seen.reachable:
                return CallError(server.endpoint, RichError(grpc.StatusCode.UNAVAILABLE, seen.problem or ""))
            try:
                return await ask(server)
            except CallError as error:
                return error

        return await asyncio.gather(*(answer(observer) for observer in self.observers))

    async def run(self) -> None:
        """Observes until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for observer in self.observers:
                tasks.create_task(observer.run())

    async def later_than(self, version: int) -> int:
        """Waits until there is a later version, and returns it."""
        while self.version <= version:
            await self._news.wait()
        return self.version

    def _tell(self) -> None:
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()
