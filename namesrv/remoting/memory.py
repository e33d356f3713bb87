"""Bounds on the memory of all connections: of requests until they are answered, and of unsent answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from heapq import heapify, heapreplace
from typing import Generic, Protocol, TypeVar

from groundwork.shares import Sharer, Shares
from namesrv.app.fair_queue import FairQueue
from namesrv.remoting.limits import MAX_FRAME_BYTES


class Holder(Hashable, Protocol):
    """A connection that holds bytes of frames and of requests."""

    @property
    def sharer(self) -> Sharer: ...

    def granted(self, size: int) -> None:
        """Gets the memory that it waits for. Neither takes any nor gives any back before it returns."""


class FrameMemory:
    """Memory for requests, shared by address. A connection that finds none waits behind its own address.

    It is not refused: a broker whose registration is cut would leave all routes. One connection at a time may exceed
    the bounds to finish its frame. Otherwise frames that have arrived in part could wait for each other.
    """

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self._waiting: FairQueue[Holder] = FairQueue()
        """Connections that wait, and those that have ended since."""
        self._wanted: dict[Holder, int] = {}
        self._exceeding: Holder | None = None
        """The connection that exceeds the bounds."""
        self._exceeding_bytes = 0

    def take(self, holder: Holder, size: int) -> bool:
        """Takes memory. If there is none, returns False and calls ``granted`` once there is."""
        if self._takes(holder, size):
            return True
        self._wanted[holder] = size
        self._waiting.put(holder.sharer.name, holder)
        return False

    def forget(self, holder: Holder) -> None:
        """Drops a connection that waits."""
        self._wanted.pop(holder, None)

    def give_back(self, holder: Holder, size: int) -> None:
        """Gives back what a connection took, or a part of it."""
        if holder is self._exceeding:
            exceeding = min(size, self._exceeding_bytes)
            self._exceeding_bytes -= exceeding
            size -= exceeding
            if not self._exceeding_bytes:
                self._exceeding = None
        if size:
            self.shares.give_back(holder.sharer, size)
        self._grant()

    def _grant(self) -> None:
        """Gives memory to connections that wait, until none is left for the first one of any owner."""
        refused: dict[str, Holder] = {}
        while self._waiting:
            first = self._waiting.get()
            owner, wanted = first.sharer.name, self._wanted.get(first)
            if wanted is None:
                continue
            if owner in refused:
                self._waiting.put(owner, first, is_next=True)
                break
            if self._takes(first, wanted):
                self.forget(first)
                first.granted(wanted)
            else:
                refused[owner] = first
        for owner, first in refused.items():
            self._waiting.put(owner, first, is_next=True)

    def _takes(self, holder: Holder, size: int) -> bool:
        if not self.shares.would_refuse(holder.sharer, size):
            self.shares.take(holder.sharer, size)
            return True
        if self._exceeding not in (None, holder) or self._exceeding_bytes + size > MAX_FRAME_BYTES:
            return False
        self._exceeding = holder
        self._exceeding_bytes += size
        return True


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
