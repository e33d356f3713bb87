"""The table of producers (RocketMQ: ProducerManager)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from broker_agent.clients.groups.group_members import GroupMembers
from broker_agent.clients.limits import CLIENT_SILENCE_SECONDS
from broker_agent.clients.records import ClientChannel, ClientChannelInfo

AVAILABLE_CHANNEL_TRIES = 3
"""Channels looked at for one that would get a message at once (RocketMQ: GET_AVAILABLE_CHANNEL_RETRY_COUNT)."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ProducerChangeListener(Protocol):
    """Is told when producers leave (RocketMQ: ProducerChangeListener). Must return quickly: the table is locked."""

    def on_client_unregister(self, group: str, info: ClientChannelInfo) -> None:
        """A client has left a group."""

    def on_group_unregister(self, group: str) -> None:
        """A group's last client has left."""


@dataclass(frozen=True, slots=True)
class ProducerRules:
    """Whether producers are taken at all; as in RocketMQ they are, unless both say no."""

    enable_register_producer: bool = True
    reject_transaction_message: bool = False

    @property
    def refuse_new(self) -> bool:
        """Whether producers that are not known yet are passed over: only transactions ask for producers."""
        return not self.enable_register_producer and self.reject_transaction_message


class ProducerManager:
    """Producer groups and their clients. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float],
        lock: AbstractContextManager[object],
        rules: ProducerRules | None = None,
        listeners: Iterable[ProducerChangeListener] = (),
    ) -> None:
        """Makes an empty table.

        Args:
            clock: Monotonic seconds.
            lock: Reentrant; guards the table, and may be shared with other tables.
            rules: Whether producers are taken.
            listeners: Who is told when producers leave.
        """
        self._clock = clock
        self._lock = lock
        self.rules = rules or ProducerRules()
        """Replaced whole by whoever changes it."""
        self._listeners = tuple(listeners)
        self._members = GroupMembers("producer")
        self._channels: dict[str, Counter[ClientChannel]] = {}
        """Client id to its channels, with the number of groups that each is in."""
        self._turn = 0

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of all groups."""
        with self._lock:
            return tuple(self._members.groups)

    @property
    def membership_count(self) -> int:
        """Pairs of group and client. Takes no lock."""
        return self._members.size

    def check_room(self, channel: ClientChannel, groups: Iterable[str]) -> None:
        """Checks that a client may join these groups. Raises LimitExceeded."""
        with self._lock:
            self._members.check_room(channel, groups)

    def register_producer(self, group: str, info: ClientChannelInfo) -> None:
        """Adds a client to a group, or renews it there.

        As in RocketMQ the channel is the client: of a known one only the time is taken, not another client id.
        """
        with self._lock:
            known = self._members.of(group).get(info.channel)
            if known is not None:
                self._members.put(group, replace(known, last_update=info.last_update, remote_addr=info.remote_addr))
                return
            if self.rules.refuse_new:
                return
            self._members.put(group, info)
            self._channels.setdefault(info.client_id, Counter())[info.channel] += 1
        _log.debug("producer_joined", group=group, client_id=info.client_id, remote_addr=info.remote_addr)

    def unregister_producer(self, group: str, channel: ClientChannel) -> bool:
        """Takes a client out of a group. Returns whether it was in it."""
        with self._lock:
            return self._remove(group, channel, "unregistered")

    def do_channel_close_event(self, channel: ClientChannel) -> tuple[str, ...]:
        """Takes a client out of every group. Returns those that it was in."""
        with self._lock:
            groups = self._members.groups_of(channel)
            for group in groups:
                self._remove(group, channel, "channel_closed")
            return groups

    def scan_not_active_channel(self) -> int:
        """Takes out who has been silent for too long. Returns how many memberships ended."""
        with self._lock:
            silent = self._members.heard_before(self._clock() - CLIENT_SILENCE_SECONDS)
            for group, channel in silent:
                self._remove(group, channel, "silent")
            return len(silent)

    def find_channel(self, client_id: str) -> ClientChannel | None:
        """The channel of a client; the one that it opened last if it has several. None if it is not known."""
        with self._lock:
            channels = self._channels.get(client_id)
            return next(reversed(channels)) if channels else None

    def members(self, group: str) -> tuple[ClientChannelInfo, ...]:
        """The clients of a group, in the order in which they joined."""
        with self._lock:
            return tuple(self._members.of(group).values())

    def get_available_channel(self, group: str) -> ClientChannel | None:
        """A channel of the group that can be told something, each in turn.

        Returns:
            One that would get it at once if there is one among the next three, otherwise the last that is active;
            None if there is none.
        """
        with self._lock:
            channels = list(self._members.of(group))
            last_active = None
            for _ in range(min(AVAILABLE_CHANNEL_TRIES, len(channels))):
                self._turn += 1
                channel = channels[self._turn % len(channels)]
                if channel.is_active:
                    if channel.is_writable:
                        return channel
                    last_active = channel
            return last_active

    def table(self) -> Mapping[str, tuple[ClientChannelInfo, ...]]:
        """All groups with their clients, as they are now."""
        with self._lock:
            return {group: tuple(self._members.of(group).values()) for group in self._members.groups}

    def _remove(self, group: str, channel: ClientChannel, why: str) -> bool:
        info = self._members.remove(group, channel)
        if info is None:
            return False
        channels = self._channels[info.client_id]
        channels[channel] -= 1
        if not channels[channel]:
            del channels[channel]
        if not channels:
            del self._channels[info.client_id]
        _log.debug("producer_left", group=group, client_id=info.client_id, why=why)
        for listener in self._listeners:
            listener.on_client_unregister(group, info)
            if group not in self._members.groups:
                listener.on_group_unregister(group)
        return True
