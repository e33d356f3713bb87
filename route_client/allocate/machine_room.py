"""Shares by machine room (MACHINE_ROOM, MACHINE_ROOM_NEARBY)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from route_client.allocate.strategy import AllocateStrategy, is_member
from route_client.errors import AllocationError
from route_client.routes.route import MessageQueue

ItemT = TypeVar("ItemT", bound=Hashable)


class AllocateByMachineRoom:
    """Only queues of brokers named ``room@name`` in the configured rooms, in blocks, the rest one each."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        """Takes the rooms whose queues are shared out (RocketMQ: consumeridcs)."""
        self._rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """As in AllocateStrategy."""
        if not is_member(group, client_id, queues, client_ids):
            return []
        index, clients = client_ids.index(client_id), len(client_ids)
        in_rooms = [queue for queue in queues if _room_of(queue.broker_name) in self._rooms]
        block, rest = divmod(len(in_rooms), clients)
        own = in_rooms[block * index : block * (index + 1)]
        return [*own, in_rooms[index + block * clients]] if rest > index else own


class MachineRoomResolver(Protocol):
    """Knows the room of brokers and clients."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        """Room of a queue's broker; never empty."""

    def consumer_deploy_in(self, client_id: str) -> str:
        """Room of a client; never empty."""


class AllocateByMachineRoomNearby:
    """Each room's queues to the room's clients; queues of rooms without clients to everybody."""

    def __init__(self, inner: AllocateStrategy, resolver: MachineRoomResolver) -> None:
        """Takes the strategy within a room, and the rooms of brokers and clients."""
        self._inner = inner
        self._resolver = resolver

    @property
    def name(self) -> str:
        """RocketMQ's name with the inner strategy's."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """As in AllocateStrategy; a broker or client without a room is an AllocationError, too."""
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
