"""Fair shares: limits on shared resources, for each caller and in total.

Pure. The owner of a resource takes a share before it gives some to a caller, and returns the share when the call, the
stream or the lease ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from namesrv_common.endpoints import LOOPBACK, owner_of
from namesrv_common.errors import Refused, limit_exceeded

EVERYBODY = "all"
"""Whose share is used up where it is not the caller's own."""

KNOWN_PEERS = 4_096
"""Peers whose addresses are kept read."""


@dataclass(frozen=True, slots=True)
class Sharer:
    """A caller with shares of its own: an identity, or an address without one."""

    name: str
    is_operator: bool = False
    """Whether it may use the reserve for operators."""
    is_many: bool = False
    """Whether it stands for any number of callers, and so has no bound of its own."""


@dataclass(frozen=True, slots=True)
class ShareRules:
    """How everything that callers hold is shared out."""

    caller_percent: int = 50
    """Most that one caller may hold, of all."""
    kept_percent: int = 20
    """What only operators may take, of all: enough to end a flood, and little enough to be idle otherwise."""

    def of_caller(self, most: int) -> int:
        """Most that one caller may hold of so much."""
        return max(1, most * self.caller_percent // 100)


Refusal = Callable[[str, int, int, str], Refused]
"""Makes an error of what is bounded, the amount that would be held, the bound, and whose it is."""


class Shares:
    """What callers hold of one kind. Not thread-safe, but for reading single values."""

    def __init__(
        self,
        what: str,
        most: int,
        rules: ShareRules | None = None,
        *,
        own: Refusal = limit_exceeded,
        full: Refusal = limit_exceeded,
    ) -> None:
        """Starts with nothing held.

        Args:
            what: Its name in errors.
            rules: The share of one caller, and the reserve for operators.
            own: The error where a caller has used up its own share.
            full: The error where all together have used up theirs.
        """
        rules = rules or ShareRules()
        self._what = what
        self.most = most
        self.most_of_caller, self._kept = rules.of_caller(most), most * rules.kept_percent // 100
        self._least = min(self.most_of_caller, most - self._kept)
        self._own, self._full = own, full
        self._held: Counter[str] = Counter()
        self.used = 0
        """What all callers hold together."""
        self.refused = 0
        """How often there was too little left."""

    def take(self, sharer: Sharer, amount: int = 1, *, spared_percent: int = 0) -> None:
        """Takes a share; ``give_back`` must follow. Raises what ``own`` or ``full`` make if that would be too much.

        ``spared_percent`` of the caller's bound, and of that of all, stays for takers that are more important.
        """
        refused = self._refusal(sharer, amount, spared_percent)
        if refused is not None:
            self.refused += 1
            raise refused
        self.used += amount
        self._held[sharer.name] += amount

    def would_refuse(self, sharer: Sharer, amount: int = 1, *, spared_percent: int = 0) -> bool:
        """Reports whether ``take`` would raise."""
        return self._refusal(sharer, amount, spared_percent) is not None

    def _refusal(self, sharer: Sharer, amount: int, spared_percent: int) -> Refused | None:
        held = self._held.get(sharer.name, 0) + amount
        most = self.most_of_caller - self.most_of_caller * spared_percent // 100
        if held > most and not sharer.is_many:
            return self._own(self._what, held, most, sharer.name)
        used, most = self.used + amount, self.most if sharer.is_operator else self.most - self._kept
        most -= most * spared_percent // 100
        return self._full(self._what, used, most, EVERYBODY) if used > most else None

    def has_room_for_anyone(self) -> bool:
        """Whether nobody at all would be refused one more."""
        return self.used < self._least

    def give_back(self, sharer: Sharer, amount: int = 1) -> None:
        """Gives back what was taken, or a part of it."""
        left = self._held[sharer.name] - amount
        assert left >= 0, f"more {self._what} given back than taken"
        self.used -= amount
        if left:
            self._held[sharer.name] = left
        else:
            del self._held[sharer.name]

    @contextmanager
    def holding(self, sharer: Sharer, amount: int = 1) -> Iterator[None]:
        """Holds a share for as long as the context lasts. Raises what ``take`` raises."""
        self.take(sharer, amount)
        try:
            yield
        finally:
            self.give_back(sharer, amount)


MACHINE = Sharer(LOOPBACK, is_operator=True, is_many=True)
"""All programs of this machine, if callers have no identity."""


@lru_cache(KNOWN_PEERS)
def sharer_at(peer: str) -> Sharer:
    """The caller at an address, as gRPC writes it (``ipv4:10.0.0.1:4711``), without an identity."""
    scheme, _, address = peer.partition(":")
    if scheme == "unix":
        return MACHINE
    owner = owner_of(unquote(address).rpartition(":")[0].strip("[]") or address or peer)
    return MACHINE if owner == LOOPBACK else Sharer(owner)
