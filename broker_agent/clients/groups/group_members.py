"""Members of groups: the table behind the managers of producers and consumers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from broker_agent.clients.limits import (
    MAX_CLIENTS_PER_GROUP,
    MAX_GROUPS,
    MAX_GROUPS_PER_CLIENT,
    MAX_MEMBERSHIPS,
)
from broker_agent.clients.records import ClientChannel, ClientChannelInfo
from broker_agent.rpc_errors import LimitExceeded

_NOBODY: Mapping[ClientChannel, ClientChannelInfo] = MappingProxyType({})


class GroupMembers:
    """Group to channel to client, and channel to groups, so that the end of a channel need not look at every group.

    A group without members does not exist. Not thread-safe: its owner has the lock.
    """

    def __init__(self, kind: str) -> None:
        """Makes an empty table.

        Args:
            kind: ``producer`` or ``consumer``, for errors.
        """
        self._kind = kind
        self._groups: dict[str, dict[ClientChannel, ClientChannelInfo]] = {}
        self._groups_of: dict[ClientChannel, set[str]] = {}
        self._size = 0

    @property
    def groups(self) -> Collection[str]:
        """Names of all groups."""
        return self._groups.keys()

    @property
    def size(self) -> int:
        """Pairs of group and client."""
        return self._size

    def of(self, group: str) -> Mapping[ClientChannel, ClientChannelInfo]:
        """The members of a group in the order in which they joined; empty if there is no such group."""
        return self._groups.get(group, _NOBODY)

    def groups_of(self, channel: ClientChannel) -> tuple[str, ...]:
        """The groups that a channel is in."""
        return tuple(self._groups_of.get(channel, ()))

    def put(self, group: str, info: ClientChannelInfo) -> None:
        """Adds a client to a group, or replaces what is known of it there."""
        members = self._groups.setdefault(group, {})
        self._size += info.channel not in members
        members[info.channel] = info
        self._groups_of.setdefault(info.channel, set()).add(group)

    def remove(self, group: str, channel: ClientChannel) -> ClientChannelInfo | None:
        """Takes a client out of a group; None if it is not in it. The last one takes the group with it."""
        members = self._groups.get(group)
        if members is None or (info := members.pop(channel, None)) is None:
            return None
        self._size -= 1
        if not members:
            del self._groups[group]
        groups = self._groups_of[channel]
        groups.discard(group)
        if not groups:
            del self._groups_of[channel]
        return info

    def heard_before(self, moment: float) -> list[tuple[str, ClientChannel]]:
        """The clients last heard before a moment (monotonic seconds), with their groups."""
        return [
            (group, channel)
            for group, members in self._groups.items()
            for channel, info in members.items()
            if info.last_update < moment
        ]

    def check_room(self, channel: ClientChannel, groups: Iterable[str]) -> None:
        """Checks that a client may join all of these groups.

        Raises:
            LimitExceeded: There would be too many groups, clients of a group, groups of the client, or both together.
        """
        joined = [group for group in groups if channel not in self.of(group)]
        if not joined:
            return
        new_groups = sum(group not in self._groups for group in joined)
        self._check(f"{self._kind} groups", len(self._groups) + new_groups, MAX_GROUPS)
        largest = 1 + max(len(self.of(group)) for group in joined)
        self._check(f"clients of one {self._kind} group", largest, MAX_CLIENTS_PER_GROUP)
        of_client = len(self._groups_of.get(channel, ())) + len(joined)
        self._check(f"{self._kind} groups of one client", of_client, MAX_GROUPS_PER_CLIENT)
        self._check(f"{self._kind}s of all groups", self._size + len(joined), MAX_MEMBERSHIPS)

    def _check(self, what: str, value: int, limit: int) -> None:
        if value > limit:
            raise LimitExceeded(what, value, limit)
