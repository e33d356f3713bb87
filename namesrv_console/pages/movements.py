"""Brokers that came and left a moment ago: shown and read out, whoever looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from namesrv_console.fleet.observation import BrokerKey, Observation
from namesrv_console.pages.broker_rows import key_of

SHOWN_MILLIS = 60_000
"""How long a broker that left is still shown."""

MOST_LEFT = 2_000
"""Brokers that left, at most: enough for a fleet, and the journal has all."""

NAMED = 3
"""Brokers that are named; more are counted."""

NEWS = 20
"""Sentences that are kept."""

Json = dict[str, Any]


class Movements:
    """Compares what is there now with what was there before."""

    def __init__(self) -> None:
        self._before: dict[BrokerKey, Json] | None = None
        self._left: dict[BrokerKey, Json] = {}
        self._news: deque[Json] = deque(maxlen=NEWS)
        self._told = 0

    def note(self, seen: Sequence[Observation], rows: Sequence[Json], now_millis: int) -> list[Json]:
        """Takes the brokers that are there now; returns those that left within the last minute, as rows.

        While a name server has not been asked yet, or none answers, nobody can say that a broker came or left.
        """
        present = {key_of(row): row for row in rows}
        begin = now_millis - SHOWN_MILLIS
        self._left = {key: row for key, row in self._left.items() if key not in present and row["leftAt"] >= begin}
        if all(view.asked for view in seen) and any(view.reachable for view in seen):
            if self._before is not None:
                self._compare(self._before, present, now_millis)
            self._before = present
        return list(self._left.values())

    def news(self) -> list[Json]:
        """Sentences about what came and left last, oldest first, numbered."""
        return list(self._news)

    def _compare(self, before: dict[BrokerKey, Json], after: dict[BrokerKey, Json], now_millis: int) -> None:
        gone = [key for key in before if key not in after]
        for key in islice(gone, max(0, MOST_LEFT - len(self._left))):
            self._left[key] = before[key] | {"state": "left", "leftAt": now_millis, "missingAt": []}
        self._tell(gone, "left")
        self._tell([key for key in after if key not in before], "came")

    def _tell(self, keys: Sequence[BrokerKey], verb: str) -> None:
        if len(keys) > NAMED:
            self._say(f"{len(keys):,} brokers {verb}")
        else:
            for key in keys:
                self._say(f"{key.broker} ({key.addr}) of {key.cluster} {verb}")

    def _say(self, text: str) -> None:
        self._told += 1
        self._news.append({"number": self._told, "text": text})
