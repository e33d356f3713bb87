"""The filter servers next to the broker (RocketMQ 4: FilterServerManager)."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from broker_agent.clients.channels import ClientChannel
from broker_agent.clients.limits import FILTER_SERVER_SILENCE_SECONDS, MAX_FILTER_SERVERS
from groundwork.errors import limit_exceeded

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class FilterServerManager:
    """Filter servers by channel, and their addresses for the registration. ``ClientManagers`` owns it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._servers: dict[ClientChannel, tuple[str, float]] = {}  # to the address, and when it was last heard

    @property
    def addresses(self) -> tuple[str, ...]:
        """Sorted, each once (RocketMQ: buildNewFilterServerList). May be read without the lock."""
        return tuple(sorted({addr for addr, _last_update in tuple(self._servers.values())}))

    def register_filter_server(self, channel: ClientChannel, addr: str) -> None:
        """Adds a filter server, or renews it. Raises LIMIT_EXCEEDED."""
        if channel not in self._servers:
            if len(self._servers) >= MAX_FILTER_SERVERS:
                raise limit_exceeded("filter servers", len(self._servers) + 1, MAX_FILTER_SERVERS)
            _log.info("filter_server_registered", addr=addr, remote_addr=channel.remote_addr)
        self._servers[channel] = addr, self._clock()

    def do_channel_close_event(self, channel: ClientChannel) -> int:
        return self._remove([channel] if channel in self._servers else [], "channel_closed")

    def scan_not_active_channel(self) -> int:
        oldest_kept = self._clock() - FILTER_SERVER_SILENCE_SECONDS
        silent = [channel for channel, (_addr, last_update) in self._servers.items() if last_update < oldest_kept]
        return self._remove(silent, "silent")

    def _remove(self, channels: list[ClientChannel], why: str) -> int:
        for channel in channels:
            _log.info("filter_server_left", addr=self._servers.pop(channel)[0], why=why)
        return len(channels)
