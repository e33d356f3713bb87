"""Places of a listener's connections: bounded in all and by address, and never all taken by those who only hold them.

Pure: the listener says what happens, and cuts whom it is told to.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

LOOPBACK = "loopback"
"""All addresses of this machine's own: they have places that nobody else can take."""
_IPV6_SITE = 64
"""Bits of an IPv6 address that name a site, which has all addresses below it."""

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PlaceRules:
    """The bounds of a listener."""

    most: int
    """Connections in all; those of loopback come on top."""
    most_by_address: int
    """Connections of one address; of IPv6, of one /64."""
    request_seconds: float
    """How long a connection may take from its begin, or from its last answer, to the end of the next answer."""
    patience_seconds: float
    """A connection that is asked or answered for longer gives way to a newcomer when there is no place."""


@dataclass(slots=True)
class _Held(Generic[ConnectionT]):
    owner: str
    since: float
    asked: bool = False
    """Whether its request has come whole."""
    lasting: bool = field(default=False)
    """Whether what it asked for may last: it is neither late nor does it give way."""


class Places(Generic[ConnectionT]):
    """The connections that there are. Not thread-safe."""

    def __init__(self, rules: PlaceRules, monotonic: Callable[[], float]) -> None:
        self._rules = rules
        self._monotonic = monotonic
        self._held: dict[ConnectionT, _Held[ConnectionT]] = {}
        self._by_owner: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def admit(self, connection: ConnectionT, address: str) -> tuple[bool, ConnectionT | None]:
        """Gives a newcomer a place.

        Returns:
            Whether it has one, and the connection to cut for it: the one that has asked for nothing for longest, of the
            newcomer's own address if that has too many, otherwise of the address that has most.
        """
        owner = owner_of(address)
        victim = None
        if self._by_owner[owner] >= self._rules.most_by_address:
            victim = self._gives_way(owner)
        elif owner != LOOPBACK and self._all_but_loopback() >= self._rules.most:
            remote = {name: count for name, count in self._by_owner.items() if name != LOOPBACK}
            victim = self._gives_way(max(remote, key=remote.__getitem__))
        else:
            self._take(connection, owner)
            return True, None
        if victim is None:
            return False, None
        self.leave(victim)
        self._take(connection, owner)
        return True, victim

    def asked(self, connection: ConnectionT, *, lasting: bool = False) -> None:
        """A connection's request has come whole; ``lasting``: its answer is a stream."""
        if held := self._held.get(connection):
            held.asked, held.lasting = True, lasting

    def answered(self, connection: ConnectionT) -> None:
        """Its answer has gone; it may ask again."""
        if held := self._held.get(connection):
            held.asked, held.lasting, held.since = False, False, self._monotonic()

    def leave(self, connection: ConnectionT) -> None:
        """A connection has ended, or is cut."""
        held = self._held.pop(connection, None)
        if held is not None:
            self._by_owner[held.owner] -= 1
            if not self._by_owner[held.owner]:
                del self._by_owner[held.owner]

    def late(self) -> list[ConnectionT]:
        """The connections whose time is over."""
        begun = self._monotonic() - self._rules.request_seconds
        return [connection for connection, held in self._held.items() if not held.lasting and held.since <= begun]

    def _take(self, connection: ConnectionT, owner: str) -> None:
        self._held[connection] = _Held(owner, self._monotonic())
        self._by_owner[owner] += 1

    def _all_but_loopback(self) -> int:
        return len(self._held) - self._by_owner[LOOPBACK]

    def _gives_way(self, owner: str) -> ConnectionT | None:
        impatient = self._monotonic() - self._rules.patience_seconds
        waiting = [
            (held.asked, held.since, number, connection)
            for number, (connection, held) in enumerate(self._held.items())
            if held.owner == owner and not held.lasting and (not held.asked or held.since <= impatient)
        ]
        return min(waiting, key=lambda row: row[:3])[-1] if waiting else None


def owner_of(address: str) -> str:
    """Whose places an address takes: its own, those of its /64, or loopback's."""
    ip = _ip_of(address)
    return LOOPBACK if ip is not None and ip.is_loopback else site_of(address)


def site_of(address: str) -> str:
    """Returns an address, or the /64 of an IPv6 address."""
    ip = _ip_of(address)
    if ip is None:
        return address
    return str(ip if ip.version == 4 else ipaddress.ip_network((ip, _IPV6_SITE), strict=False))


def _ip_of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the IP address, IPv4 if it is mapped into IPv6; None for anything else."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip
