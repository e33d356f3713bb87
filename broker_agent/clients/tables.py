"""The tables that clients are in, together."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass

from broker_agent.clients.channels import ClientChannels
from broker_agent.clients.groups.consumer_filter_manager import ConsumerFilterManager
from broker_agent.clients.groups.consumer_ids_change_listener import DefaultConsumerIdsChangeListener
from broker_agent.clients.groups.consumer_manager import ConsumerManager
from broker_agent.clients.groups.filter_server_manager import FilterServerManager
from broker_agent.clients.groups.producer_manager import ProducerManager, ProducerRules
from broker_agent.clients.records import ClientChannel
from broker_agent.timing.clock import Timing


@dataclass(frozen=True, slots=True)
class ClientTables:
    """Every table that has something of clients."""

    lock: AbstractContextManager[object]
    """Reentrant; producers and consumers share it, so that one heartbeat is one step."""
    channels: ClientChannels
    producers: ProducerManager
    consumers: ConsumerManager
    filters: ConsumerFilterManager
    filter_servers: FilterServerManager
    listener: DefaultConsumerIdsChangeListener
    """What the consumers' table tells."""

    @classmethod
    def empty(
        cls,
        timing: Timing,
        *,
        notify_consumer_ids_changed_enable: bool,
        producer_rules: ProducerRules,
        max_channels: int,
    ) -> ClientTables:
        """Empty tables; see ``ClientManagers`` for the arguments."""
        lock = threading.RLock()
        filters = ConsumerFilterManager(timing)
        listener = DefaultConsumerIdsChangeListener(
            filters, notify_consumer_ids_changed_enable=notify_consumer_ids_changed_enable
        )
        return cls(
            lock,
            ClientChannels(timing.clock, max_channels),
            ProducerManager(timing.clock, lock, producer_rules),
            ConsumerManager(timing.clock, lock, listener),
            filters,
            FilterServerManager(timing.clock),
            listener,
        )

    def remove_everywhere(self, channel: ClientChannel) -> int:
        """Takes a client out of every table. Returns how many memberships ended."""
        producer_groups = self.producers.do_channel_close_event(channel)
        consumer_groups = self.consumers.do_channel_close_event(channel)
        was_filter_server = self.filter_servers.do_channel_close_event(channel)
        return len(producer_groups) + len(consumer_groups) + was_filter_server
