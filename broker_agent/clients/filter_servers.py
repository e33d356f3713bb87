"""The filter servers beside the broker (RocketMQ 4: FilterServerManager)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from broker_agent.clients.limits import FILTER_SERVER_SILENCE_SECONDS, MAX_FILTER_SERVERS
from broker_agent.clients.records import ClientChannel
from broker_agent.errors import limit_exceeded

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _FilterServer:
    addr: str
    last_update: float
    """Monotonic seconds."""


class FilterServerManager:
    """Filter servers by channel, and their addresses for the registration. Thread-safe.

    Listeners are called outside the lock, in whichever thread made the change, and must return quickly.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Makes an empty table. ``clock`` gives monotonic seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._table: dict[ClientChannel, _FilterServer] = {}
        self._addresses: tuple[str, ...] = ()
        self._listeners: list[Callable[[], None]] = []

    @property
    def filter_servers(self) -> tuple[str, ...]:
        """Addresses, sorted, each once (RocketMQ: buildNewFilterServerList). Takes no lock."""
        return self._addresses

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls the listener after every change of ``filter_servers`` from now on."""
        with self._lock:
            self._listeners.append(listener)

    def register_filter_server(self, channel: ClientChannel, addr: str) -> None:
        """Adds a filter server, or renews it. Raises LIMIT_EXCEEDED if there would be too many."""
        with self._lock:
            known = self._table.get(channel)
            if known is None and len(self._table) >= MAX_FILTER_SERVERS:
                raise limit_exceeded("filter servers", len(self._table) + 1, MAX_FILTER_SERVERS)
            self._table[channel] = _FilterServer(addr, self._clock())
            changed = self._rebuild()
        if known is None:
            _log.info("filter_server_registered", addr=addr, remote_addr=channel.remote_addr)
        self._tell(changed)

    def do_channel_close_event(self, channel: ClientChannel) -> bool:
        """Takes out the filter server of a channel. Returns whether there was one."""
        with self._lock:
            gone = self._table.pop(channel, None)
            changed = self._rebuild()
        if gone is not None:
            _log.info("filter_server_left", addr=gone.addr, why="channel_closed")
        self._tell(changed)
        return gone is not None

    def scan_not_active_channel(self) -> int:
        """Takes out filter servers that have been silent for too long. Returns how many."""
        with self._lock:
            oldest_kept = self._clock() - FILTER_SERVER_SILENCE_SECONDS
            silent = [channel for channel, server in self._table.items() if server.last_update < oldest_kept]
            gone = [self._table.pop(channel) for channel in silent]
            changed = self._rebuild()
        for server in gone:
            _log.info("filter_server_left", addr=server.addr, why="silent")
        self._tell(changed)
        return len(gone)

    def _rebuild(self) -> bool:
        addresses = tuple(sorted({server.addr for server in self._table.values()}))
        changed = addresses != self._addresses
        self._addresses = addresses
        return changed

    def _tell(self, changed: bool) -> None:
        if changed:
            for listener in tuple(self._listeners):
                listener()
