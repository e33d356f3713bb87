"""The account of an HTTP listener's connections: bounded in all and by address, each with a deadline."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import cast

from namesrv_common.endpoints import owner_of


class HttpConnections:
    """The open connections of one listener. Belongs to the listener's event loop.

    A connection beyond a bound ends the one that was silent for longest: of its own address, or of the address that has
    most. So a caller that holds connections or floods takes them from itself, and one that asks at once has an answer.
    """

    def __init__(self, *, most: int, most_by_address: int, seconds: float) -> None:
        """Creates it without connections.

        Args:
            most_by_address: Connections of one address; of IPv6, of one /64.
            seconds: Time from ``renew`` until the connection is cut, unless ``renew`` or ``remove`` is called before.
        """
        self._most = most
        self._most_by_address = most_by_address
        self._seconds = seconds
        self._owners: dict[asyncio.BaseTransport, str] = {}
        self._timers: defaultdict[str, dict[asyncio.Transport, asyncio.TimerHandle]] = defaultdict(dict)
        """By owner; the connections that were renewed last come last."""

    def __len__(self) -> int:
        return len(self._owners)

    def renew(self, connection: asyncio.BaseTransport) -> None:
        """Counts a connection from now on, and gives it its time, again if it was counted before."""
        self.remove(connection)
        if connection.is_closing():
            return
        transport = cast("asyncio.Transport", connection)
        owner = owner_of(str((transport.get_extra_info("peername") or ("unknown",))[0]))
        if len(self._timers[owner]) >= self._most_by_address:
            self._cut_one(owner)
        elif len(self) >= self._most:
            self._cut_one(max(self._timers, key=lambda name: len(self._timers[name])))
        self._owners[transport] = owner
        self._timers[owner][transport] = asyncio.get_running_loop().call_later(self._seconds, transport.abort)

    def remove(self, connection: asyncio.BaseTransport) -> None:
        """Counts a connection no more: it has ended, or it lasts."""
        owner = self._owners.pop(connection, None)
        if owner is not None:
            self._timers[owner].pop(cast("asyncio.Transport", connection)).cancel()
            if not self._timers[owner]:
                del self._timers[owner]

    def cut_all(self) -> None:
        for owner in list(self._timers):
            while owner in self._timers:
                self._cut_one(owner)

    def _cut_one(self, owner: str) -> None:
        transport = next(iter(self._timers[owner]))
        self.remove(transport)
        transport.abort()
