"""The polling for clients that have gone: pyvoy reports them only when it is asked."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

TURNS_PER_PERIOD = 10
"""A period is cut into so many turns, so that no turn holds up the event loop."""


class Asked(Protocol):
    """A call whose client may have gone."""

    def ask_for_the_peer(self) -> None:
        """Finds out."""


class PeerPoll:
    """Asks after the clients of long calls in turn: each once in a period, or more seldom if there are very many."""

    def __init__(self, period_seconds: float, most_per_second: int) -> None:
        """Starts with no calls.

        Args:
            period_seconds: How often each is asked after.
            most_per_second: No more are asked after, which bounds what it costs: about 50 microseconds each.
        """
        self._turn_seconds = period_seconds / TURNS_PER_PERIOD
        self._most_per_turn = max(1, int(most_per_second * self._turn_seconds))
        self._calls: OrderedDict[Asked, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Asked) -> None:
        """Polls for this call from now on."""
        self._calls[call] = None

    def discard(self, call: Asked) -> None:
        """The call has ended."""
        self._calls.pop(call, None)

    def take_turn(self) -> None:
        """Polls for those calls that have waited longest."""
        for _ in range(min(self._most_per_turn, -(-len(self._calls) // TURNS_PER_PERIOD))):
            call = next(iter(self._calls))
            self._calls.move_to_end(call)
            call.ask_for_the_peer()

    async def run(self) -> None:
        """Takes turns until cancelled."""
        while True:
            await asyncio.sleep(self._turn_seconds)
            self.take_turn()
