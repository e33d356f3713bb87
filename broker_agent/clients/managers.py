"""The state of all clients, assembled."""

from __future__ import annotations

import threading
from collections.abc import Callable

from broker_agent.clients.groups.producer_manager import ProducerRules
from broker_agent.clients.housekeeping_service import ClientHousekeepingService
from broker_agent.clients.limits import MAX_CHANNELS
from broker_agent.clients.manage_processor import ClientManageProcessor
from broker_agent.clients.tables import ClientTables
from broker_agent.timing.clock import Timing
from broker_agent.timing.periodic_thread import Wait


class ClientManagers:
    """Producers, consumers, their filters, filter servers and channels, and the scan that removes the silent.

    Needs no listener: ``ClientServer`` serves it. Thread-safe.
    """

    def __init__(
        self,
        timing: Timing | None = None,
        *,
        notify_consumer_ids_changed_enable: bool = True,
        producer_rules: ProducerRules | None = None,
        max_channels: int = MAX_CHANNELS,
        wait: Wait = threading.Event.wait,
    ) -> None:
        """Makes empty tables; nothing runs before ``start``.

        Args:
            timing: Clocks; the real ones by default.
            notify_consumer_ids_changed_enable: Whether consumers are told when their group changes.
            producer_rules: Whether producers are taken; they are by default.
            max_channels: Most open channels.
            wait: How to wait between two scans.
        """
        self.timing = timing or Timing()
        self.tables = ClientTables.empty(
            self.timing,
            notify_consumer_ids_changed_enable=notify_consumer_ids_changed_enable,
            producer_rules=producer_rules or ProducerRules(),
            max_channels=max_channels,
        )
        self.housekeeping = ClientHousekeepingService(self.timing.clock, self.tables, wait)
        self.processor = ClientManageProcessor(self.tables)

    def filter_servers(self) -> tuple[str, ...]:
        """Addresses of the filter servers for the registration, sorted. Takes no lock."""
        return self.tables.filter_servers.filter_servers

    def on_filter_servers_change(self, listener: Callable[[], None]) -> None:
        """Calls the listener after every change of ``filter_servers``, in whichever thread made it, outside all locks.

        Changes of two threads may be told in either order, so the listener gets no value: it reads the newest.
        """
        self.tables.filter_servers.on_change(listener)

    def start(self) -> None:
        """Starts the scan for silence."""
        self.housekeeping.start()

    def stop(self) -> None:
        """Ends the scan; from now on the end of a channel removes nobody. Call it before the listener stops."""
        self.housekeeping.stop()
