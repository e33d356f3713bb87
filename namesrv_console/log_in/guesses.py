"""Wrong passwords and tokens: each costs whoever sent it a longer pause, by address and by the name that was tried."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FREE_GUESSES = 5
"""Wrong ones that cost nothing: people mistype."""

MAX_ADDRESSES = 10_000
"""Addresses that are remembered; beyond, the one that tried least recently is forgotten."""

LONGEST_ADDRESS_SECONDS = 60.0
"""Longest pause of an address."""

LONGEST_NAME_SECONDS = 10.0
"""Longest pause of a name: who guesses from many addresses keeps the person it belongs to out for no longer, and from
an address where the person has logged in before not at all."""

FORGET_SECONDS = 900.0
"""An address or name without another guess for so long begins anew."""


@dataclass(slots=True)
class _Tried:
    count: int
    at: float


class _Pauses:
    """Pauses of one kind of key, doubled with each guess."""

    def __init__(self, longest_seconds: float, monotonic: Callable[[], float]) -> None:
        self._longest = longest_seconds
        self._monotonic = monotonic
        self._tried: OrderedDict[str, _Tried] = OrderedDict()
        """The one that tried last comes last."""

    def left(self, key: str) -> float:
        """Seconds until the next guess is looked at."""
        tried = self._tried.get(key)
        if tried is None or tried.count < FREE_GUESSES:
            return 0.0
        pause = min(2.0 ** min(tried.count - FREE_GUESSES, 30), self._longest)
        return max(0.0, tried.at + pause - self._monotonic())

    def count(self, key: str) -> None:
        """A guess is made; it counts as wrong until ``forget``."""
        now, tried = self._monotonic(), self._tried.pop(key, None)
        anew = tried is None or tried.at + FORGET_SECONDS < now
        self._tried[key] = _Tried(1 if anew or tried is None else tried.count + 1, now)
        if len(self._tried) > MAX_ADDRESSES:
            self._tried.popitem(last=False)

    def forget(self, key: str) -> None:
        """It was right."""
        self._tried.pop(key, None)


class Guesses:
    """Who has to wait before the next log-in is looked at."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._addresses = _Pauses(LONGEST_ADDRESS_SECONDS, monotonic)
        self._names = _Pauses(LONGEST_NAME_SECONDS, monotonic)
        self._at_home: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Names with the addresses from which they have logged in."""

    def left(self, address: str, name: str | None) -> float:
        """Seconds that a log-in from an address has to wait; with a name only if there is such a person."""
        network = network_of(address)
        by_name = 0.0 if name is None or (name, network) in self._at_home else self._names.left(name)
        return max(self._addresses.left(network), by_name)

    def begin(self, address: str, name: str | None) -> None:
        """A log-in is looked at. It counts as wrong from now on, so that many at once are no way around the pauses."""
        network = network_of(address)
        self._addresses.count(network)
        if name is not None and (name, network) not in self._at_home:
            self._names.count(name)

    def right(self, address: str, name: str | None) -> None:
        """The log-in was right."""
        network = network_of(address)
        self._addresses.forget(network)
        if name is not None:
            self._names.forget(name)
            self._at_home[name, network] = None
            self._at_home.move_to_end((name, network))
            if len(self._at_home) > MAX_ADDRESSES:
                self._at_home.popitem(last=False)


def network_of(address: str) -> str:
    """An address; of IPv6 its /64, because a caller has all of that."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))
