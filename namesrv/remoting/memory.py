"""Bounds on the memory of all connections: of large frames until they are answered, and of unsent answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from heapq import heapify, heapreplace
from typing import Generic, TypeVar

from namesrv.limits import MAX_REQUEST_BYTES_UNDER_WAY, SMALL_REQUEST_BYTES

Granted = Callable[[int], None]
"""Told the size of the frame that there is room for now."""


class FrameMemory:
    """Room for large frames of all connections together. Where there is none, connections wait in their order.

    A broker whose registration is on its way must not be cut for others' registrations: it would leave all routes.
    """

    def __init__(self, max_bytes: int = MAX_REQUEST_BYTES_UNDER_WAY) -> None:
        self._max_bytes = max_bytes
        self._taken = 0
        self._waiting: dict[Granted, int] = {}

    @staticmethod
    def counts(size: int) -> bool:
        """Whether a frame of so many bytes needs room."""
        return size > SMALL_REQUEST_BYTES

    def take(self, size: int, granted: Granted) -> bool:
        """Takes room for a frame; if there is none, calls back once there is."""
        if self._waiting or self._taken + size > self._max_bytes:
            self._waiting[granted] = size
            return False
        self._taken += size
        return True

    def forget(self, granted: Granted) -> None:
        """Whoever waits waits no longer."""
        self._waiting.pop(granted, None)

    def give_back(self, size: int) -> None:
        """Gives back what a frame took; 0 changes nothing."""
        self._taken -= size
        while self._waiting:
            granted, wanted = next(iter(self._waiting.items()))
            if self._taken + wanted > self._max_bytes:
                return
            del self._waiting[granted]
            self._taken += wanted
            granted(wanted)


PeerT = TypeVar("PeerT", bound=Hashable)


class UnsentAnswers(Generic[PeerT]):
    """Bytes that wait for the peers of all connections together, as of the last look at each connection.

    Bytes that a peer reads afterwards count until the bound is exceeded. Then all connections are looked at again.
    """

    def __init__(
        self, max_bytes: int, unsent_bytes: Callable[[PeerT], int], address_of: Callable[[PeerT], str]
    ) -> None:
        """Starts without connections. ``address_of`` returns the address that a connection counts for."""
        self._max_bytes = max_bytes
        self._unsent_bytes = unsent_bytes
        self._address_of = address_of
        self._owed: dict[PeerT, int] = {}
        self._total = 0

    def note(self, peer: PeerT) -> list[tuple[PeerT, int]]:
        """Notes that bytes wait for a peer.

        Returns:
            The connections to end, each with its unsent bytes, if all connections together have too many. The address
            that has most loses its largest connection first, until an eighth of the bound is free: a look at
            all connections must not follow each answer.
        """
        owed = self._unsent_bytes(peer)
        self._total += owed - self._owed.get(peer, 0)
        self._owed[peer] = owed
        if self._total > self._max_bytes:
            self._look_again()
        return self._worst() if self._total > self._max_bytes else []

    def forget(self, peer: PeerT) -> None:
        self._total -= self._owed.pop(peer, 0)

    def _look_again(self) -> None:
        owed = {peer: self._unsent_bytes(peer) for peer in self._owed}
        self._owed = {peer: size for peer, size in owed.items() if size}
        self._total = sum(owed.values())

    def _worst(self) -> list[tuple[PeerT, int]]:
        peers: defaultdict[str, list[PeerT]] = defaultdict(list)
        for peer in sorted(self._owed, key=self._owed.__getitem__):
            peers[self._address_of(peer)].append(peer)
        largest = [(-sum(map(self._owed.__getitem__, of_address)), address) for address, of_address in peers.items()]
        heapify(largest)
        worst: list[tuple[PeerT, int]] = []
        while self._total > self._max_bytes * 7 // 8:
            owed_to_address, address = largest[0]
            peer = peers[address].pop()
            size = self._owed[peer]
            heapreplace(largest, (owed_to_address + size, address))
            self.forget(peer)
            worst.append((peer, size))
        return worst
