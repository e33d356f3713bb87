"""Turns of small work: a few pieces begin in one turn of the event loop, others in the next ones in their order."""

from __future__ import annotations

import asyncio
from collections import deque

BEGUN_IN_A_TURN = 4
"""Pieces of work that begin before others have their turn: four registrations of few topics take a millisecond."""


class Turns:
    """Spreads pieces of work that do not give way by themselves over turns of the event loop.

    A registration of few topics is one step. When a thousand brokers register at once, a thousand of these are ready in
    one turn, and a lookup would wait for all of them: a third of a second. So each turn begins a few, and no fewer
    while any wait, as each turn costs something itself. Where new pieces come just as the last of those that waited
    begin, one turn can have twice as many.
    """

    def __init__(self) -> None:
        self._begun = 0
        """Pieces that have begun since the count was set back. Those of earlier turns may be among them."""
        self._line: deque[asyncio.Future[None]] = deque()
        """Whoever waits. The next turn is planned as long as anybody does."""

    def begin(self) -> bool:
        """Whether a piece may begin now; otherwise it has to ``wait``."""
        if self._line or self._begun >= BEGUN_IN_A_TURN:
            return False
        self._begun += 1
        if self._begun == BEGUN_IN_A_TURN:
            asyncio.get_running_loop().call_soon(self._next_turn)
        return True

    async def wait(self) -> None:
        """Waits for the pieces that came before, and until others have had their turn. Then the piece begins."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._begun = 0
        while self._line and self._begun < BEGUN_IN_A_TURN:
            turn = self._line.popleft()
            if not turn.done():  # else its caller has gone
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            # Those that were woken run before this is called again. Until then nobody may overtake them.
            self._begun = BEGUN_IN_A_TURN
            asyncio.get_running_loop().call_soon(self._next_turn)
