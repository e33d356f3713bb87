"""Strategies by which consumers share a topic's queues: RocketMQ's six, with RocketMQ's results.

Pure; consumers import it, and nothing of the client does.
"""

from __future__ import annotations

import bisect
import hashlib
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from route_client.errors import AllocationError
from route_client.route import MessageQueue

# The bases of all allocation strategies (RocketMQ: AllocateMessageQueueStrategy and its abstract class).

_log = logging.getLogger(__name__)


class AllocateStrategy(ABC):
    """Shares the queues of a topic among the clients of a consumer group.

    Every client computes its own part; the parts fit together if all of them see the same queues and clients, sorted.
    """

    name: str
    """RocketMQ's name of the strategy."""

    @abstractmethod
    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of one client.

        Args:
            group: Name of the consumer group, for the log.
            client_id: The client.
            queues: All queues of the topic, sorted.
            client_ids: All clients of the group, sorted.

        Returns:
            Its queues; none if the client is not one of the group's.

        Raises:
            AllocationError: The client id is empty, or there are no queues or no clients.
        """


def is_member(group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> bool:
    """Whether the client is one of the group's. Raises AllocationError as in ``AllocateStrategy.allocate``."""
    for what, value in (("client_id", client_id), ("queues", queues), ("client_ids", client_ids)):
        if not value:
            raise AllocationError(f"{what} is empty")
    if client_id in client_ids:
        return True
    _log.warning("client %s of group %s is not among the group's clients: it gets no queues", client_id, group)
    return False


class _CheckedStrategy(AllocateStrategy):
    """A strategy that checks its arguments first."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Returns the client's queues. Errors are those of AllocateStrategy."""
        is_one = is_member(group, client_id, queues, client_ids)
        return self._share(client_id, queues, client_ids) if is_one else []

    @abstractmethod
    def _share(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """Returns the queues of a member of the group."""


# Even shares: neighbouring queues (AVG, the default) or round robin (AVG_BY_CIRCLE).


class AllocateAveragely(_CheckedStrategy):
    """Each client gets neighbouring queues; if they do not divide evenly, the first clients get one more."""

    name = "AVG"

    def _share(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        index = client_ids.index(client_id)
        share, more = divmod(len(queues), len(client_ids))
        start = index * share + min(index, more)
        return list(queues[start : start + share + (1 if index < more else 0)])


class AllocateAveragelyByCircle(_CheckedStrategy):
    """The queues are dealt out one by one."""

    name = "AVG_BY_CIRCLE"

    def _share(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


# A fixed list of queues (CONFIG).


class AllocateByConfig(AllocateStrategy):
    """The queues that the client was configured with, whatever other clients there are."""

    name = "CONFIG"

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        """Takes the client's queues."""
        self._queues = tuple(queues)

    def allocate(self, *_: object, **__: object) -> list[MessageQueue]:
        """The fixed list; nothing is checked, as in RocketMQ."""
        return list(self._queues)


# Shares that change little when clients come and go (CONSISTENT_HASH).

VIRTUAL_NODES = 10
"""Points of each client on the ring (RocketMQ: virtualNodeCnt)."""


class AllocateByConsistentHash(_CheckedStrategy):
    """Each queue belongs to the first client at or after its point on a ring."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        """Takes the number of points of each client.

        Raises:
            AllocationError: It is negative.
        """
        if virtual_nodes < 0:
            raise AllocationError(f"virtual_nodes is {virtual_nodes}, not 0 or more")
        self._virtual_nodes = virtual_nodes

    def _share(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        # A later client takes over an earlier one's point if both are equal, as in Java's TreeMap.
        ring = {place(f"{client}-{node}"): client for client in client_ids for node in range(self._virtual_nodes)}
        places = sorted(ring)
        if not places:
            return []
        nodes = (bisect.bisect_left(places, place(str(queue))) % len(places) for queue in queues)
        return [queue for queue, node in zip(queues, nodes, strict=True) if ring[places[node]] == client_id]


def place(key: str) -> int:
    """A key's point on the ring: the first four bytes of its MD5, as a big-endian number."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


# Shares by machine room (MACHINE_ROOM, MACHINE_ROOM_NEARBY).

ItemT = TypeVar("ItemT", bound=Hashable)


class AllocateByMachineRoom(_CheckedStrategy):
    """Only queues of brokers named ``room@name`` in the configured machine rooms, in blocks, the rest one each."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        """Takes the machine rooms whose queues are shared out (RocketMQ: consumeridcs)."""
        self._rooms = frozenset(rooms)

    def _share(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        index, clients = client_ids.index(client_id), len(client_ids)
        in_rooms = [queue for queue in queues if _room_of(queue.broker_name) in self._rooms]
        block, rest = divmod(len(in_rooms), clients)
        own = in_rooms[block * index : block * (index + 1)]
        return [*own, in_rooms[index + block * clients]] if rest > index else own


class MachineRoomResolver(Protocol):
    """Knows the machine room of brokers and clients."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        """Machine room of a queue's broker; never empty."""

    def consumer_deploy_in(self, client_id: str) -> str:
        """Machine room of a client; never empty."""


class AllocateByMachineRoomNearby(AllocateStrategy):
    """Queues of each machine room to its own clients; queues of machine rooms without clients to everybody."""

    def __init__(self, inner: AllocateStrategy, resolver: MachineRoomResolver) -> None:
        """Takes the strategy within a machine room, and the resolver of machine rooms."""
        self._inner = inner
        self._resolver = resolver
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """As in AllocateStrategy; a broker or client without a machine room is an AllocationError, too."""
        if not is_member(group, client_id, queues, client_ids):
            return []
        queues_by_room = _by_room(queues, self._resolver.broker_deploy_in)
        clients_by_room = _by_room(client_ids, self._resolver.consumer_deploy_in)
        own_room = self._resolver.consumer_deploy_in(client_id)
        own: list[MessageQueue] = []
        if own_room in queues_by_room:
            own += self._inner.allocate(group, client_id, queues_by_room[own_room], clients_by_room[own_room])
        for room in sorted(queues_by_room.keys() - clients_by_room.keys()):
            own += self._inner.allocate(group, client_id, queues_by_room[room], client_ids)
        return own


def _room_of(broker_name: str) -> str | None:
    room, at, rest = broker_name.partition("@")
    return room if at and rest and "@" not in rest else None


def _by_room(items: Iterable[ItemT], room_of: Callable[[ItemT], str]) -> dict[str, list[ItemT]]:
    rooms: defaultdict[str, list[ItemT]] = defaultdict(list)
    for item in items:
        room = room_of(item)
        if not room:
            raise AllocationError(f"{item} has no machine room")
        rooms[room].append(item)
    return dict(rooms)
