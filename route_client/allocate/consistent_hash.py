"""Shares that change little when clients come and go (CONSISTENT_HASH)."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence

from route_client.allocate.strategy import is_member
from route_client.errors import AllocationError
from route_client.routes.route import MessageQueue

VIRTUAL_NODES = 10
"""Places of each client on the ring (RocketMQ: virtualNodeCnt)."""


class AllocateByConsistentHash:
    """Each queue belongs to the first client at or after its place on a ring."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        """Takes the number of places of each client.

        Raises:
            AllocationError: It is negative.
        """
        if virtual_nodes < 0:
            raise AllocationError(f"virtual_nodes is {virtual_nodes}, not 0 or more")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """As in AllocateStrategy."""
        if not is_member(group, client_id, queues, client_ids):
            return []
        # A later client takes a place over from an earlier one, as in Java's TreeMap.
        ring = {place(f"{client}-{node}"): client for client in client_ids for node in range(self._virtual_nodes)}
        places = sorted(ring)
        if not places:
            return []
        return [queue for queue in queues if ring[_first_from(places, place(str(queue)))] == client_id]


def place(key: str) -> int:
    """A key's place on the ring: the first four bytes of its MD5, as a big-endian number."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _first_from(places: Sequence[int], wanted: int) -> int:
    return places[bisect.bisect_left(places, wanted) % len(places)]
