"""Calls that the engine knows by a number, since they were answered before: what answers them when they come again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import namesrv_engine
import structlog

from namesrv.server.engines.native.call import Call
from namesrv.server.rpc.repeated_calls import Again

MAX_KNOWN = 32_768
"""Calls that are known at once; then all are forgotten, and learned anew. Some 30 MB at most: heartbeats and questions
of 10,000 brokers, and some more."""

_log = structlog.get_logger(__name__)


class KnownCalls:
    """The calls by their numbers. A number is given once, so that what is forgotten stays so."""

    def __init__(self, engine: namesrv_engine.Engine, most: int = MAX_KNOWN) -> None:
        self._engine = engine
        self._most = most
        self._numbers = itertools.count(1)
        self._again: dict[int, Again] = {}
        self._has_room: set[Callable[[], bool]] = set()
        """What admits calls of the kinds that are known."""

    def learn(self, call: Call, again: Again, has_room: Callable[[], bool]) -> None:
        """A call was answered well; when it comes again, it comes by a number.

        Args:
            call: The call.
            again: Answers it.
            has_room: Whether nobody would be refused one more of its kind.
        """
        if (before := call.call.known) is not None:
            self._again.pop(before, None)
        if len(self._again) >= self._most:
            self.forget()
        number = next(self._numbers)
        if self._engine.know(call.call, number):
            self._again[number] = again
            self._has_room.add(has_room)

    def forget(self) -> None:
        """Every call is looked at as a whole again. Thread-safe."""
        self._again.clear()
        self._engine.forget_known()

    def answers(self, numbers: Sequence[int]) -> list[bytes | None]:
        """The answers to calls that came by their numbers; None where a call has to be looked at as a whole."""
        if not all(has_room() for has_room in self._has_room):  # it matters who calls; none of them takes what is there
            return [None] * len(numbers)
        find, answers = self._again.get, list[bytes | None]()
        for number in numbers:
            again = find(number)
            try:
                answers.append(None if again is None else again())
            except Exception:  # noqa: BLE001 - the others of its turn have nothing to do with it
                _log.exception("known_call_failed")
                answers.append(None)
        return answers
