"""The table of producers (RocketMQ: ProducerManager), and what that of consumers has in common with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from broker_agent.clients import limits
from broker_agent.clients.channels import ClientChannel
from groundwork.errors import limit_exceeded
from groundwork.shares import MACHINE, Sharer, ShareRules, Shares

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class ClientChannelInfo:
    """A client in one group."""

    channel: ClientChannel  # the key of the client
    client_id: str
    language: str
    version: str
    last_update: float  # when it was last heard in this group: monotonic seconds
    remote_addr: str
    sharer: Sharer = MACHINE  # the caller whose share it takes: that which it joined as


class GroupTable:
    """Groups and their members. A group without members does not exist. ``ClientManagers`` owns it."""

    _kind = "producer"

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members: dict[str, dict[ClientChannel, ClientChannelInfo]] = {}
        self._groups_of: dict[ClientChannel, set[str]] = {}
        self._shares = Shares(f"bytes of {self._kind} groups", limits.MAX_GROUP_BYTES, ShareRules(kept_percent=0))
        self.membership_count = 0  # pairs of group and client

    def groups(self) -> tuple[str, ...]:
        return tuple(self._members)

    def members(self, group: str) -> tuple[ClientChannelInfo, ...]:
        return tuple(self._members.get(group, {}).values())

    def check_can_join(
        self, channel: ClientChannel, groups: Iterable[str], sharer: Sharer, more_bytes: int = 0
    ) -> None:
        """Checks that a client may join these groups, and its caller hold more bytes. Raises LIMIT_EXCEEDED."""
        joined = [group for group in groups if group not in self._groups_of.get(channel, ())]
        largest = 1 + max((len(self._members.get(group, ())) for group in joined), default=0)
        if largest > limits.MAX_CLIENTS_PER_GROUP:
            raise limit_exceeded(f"clients of one {self._kind} group", largest, limits.MAX_CLIENTS_PER_GROUP)
        with self._shares.holding(sharer, len(joined) * limits.MEMBER_BYTES + more_bytes):
            pass

    def do_channel_close_event(self, channel: ClientChannel) -> int:
        """Takes a client out of every group. Returns how many these were."""
        return self._remove([(group, channel) for group in self._groups_of.get(channel, ())], "channel_closed")

    def scan_not_active_channel(self) -> int:
        """Takes out the clients that were silent for too long. Returns how many memberships ended."""
        oldest_kept = self._clock() - limits.CLIENT_SILENCE_SECONDS
        members = ((group, info) for group, of_group in self._members.items() for info in of_group.values())
        return self._remove(
            [(group, info.channel) for group, info in members if info.last_update < oldest_kept], "silent"
        )

    def _add(self, group: str, info: ClientChannelInfo) -> None:
        self._shares.take(info.sharer, limits.MEMBER_BYTES)
        self._members.setdefault(group, {})[info.channel] = info
        self._groups_of.setdefault(info.channel, set()).add(group)
        self.membership_count += 1
        _log.debug(f"{self._kind}_joined", group=group, client_id=info.client_id, remote_addr=info.remote_addr)

    def _remove(self, memberships: Iterable[tuple[str, ClientChannel]], why: str) -> int:
        """Takes clients out of groups, where they are in them. Returns how many memberships ended."""
        count_before, left = self.membership_count, dict[str, None]()
        for group, channel in memberships:
            if (info := self._members.get(group, {}).pop(channel, None)) is None:
                continue
            left[group] = None
            self.membership_count -= 1
            self._shares.give_back(info.sharer, limits.MEMBER_BYTES)
            self._groups_of[channel].discard(group)
            if not self._groups_of[channel]:
                del self._groups_of[channel]
            _log.debug(f"{self._kind}_left", group=group, client_id=info.client_id, why=why)
        for group in left:
            if not self._members[group]:
                del self._members[group]
            self._left(group)
        return count_before - self.membership_count

    def _left(self, group: str) -> None:
        """Reacts to members that have left a group, which may be empty now."""


class ProducerManager(GroupTable):
    """Producer groups and their clients."""

    def register_producer(self, group: str, info: ClientChannelInfo) -> None:
        """Adds a client that may join a group, or renews it there. Another id over its channel changes nothing."""
        known = self._members.get(group, {}).get(info.channel)
        if known is None:
            self._add(group, info)
        else:
            known.last_update, known.remote_addr = info.last_update, info.remote_addr

    def unregister_producer(self, group: str, channel: ClientChannel) -> bool:
        return bool(self._remove([(group, channel)], "unregistered"))
