"""The broker as it is now: the settings, and what calls and clients have changed since."""

from __future__ import annotations

import threading
from dataclasses import replace

from namesrv_api.v1 import route_data_pb2

from broker_agent.broker.registration import BrokerState, Registration
from broker_agent.timing.clock import Timing
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import MAX_STATE_VERSION


class CurrentBroker:
    """Holds the broker's state and makes registrations of it. While nothing changes, it returns the same one."""

    def __init__(self, state: BrokerState, topic_configs: TopicConfigManager, timing: Timing) -> None:
        """Creates it.

        Args:
            state: The broker at first.
            topic_configs: Its topics.
            timing: Wall clock.
        """
        self._topic_configs = topic_configs
        self._timing = timing
        self._lock = threading.Lock()
        self._state = state
        self._registration: Registration | None = None

    @property
    def state(self) -> BrokerState:
        """The broker without its topics."""
        return self._state

    def identity(self) -> route_data_pb2.BrokerIdentity:
        """The broker as every call names it now."""
        return self._state.identity()

    def registration(self) -> Registration:
        """What name servers should hold now."""
        with self._lock:
            table = self._topic_configs.table
            current = self._registration
            if current is None or current.table is not table or current.broker is not self._state:
                self._registration = current = Registration(self._state, table)
            return current

    def change_role(self, broker_id: int, state_version: int | None = None) -> int:
        """Makes the broker a master or a slave.

        Args:
            broker_id: 0 for the master.
            state_version: That of the new role; one above the one in force by default.

        Returns:
            The state version in force.

        Raises:
            ValueError: The state version is below the one in force, or above the largest that there may be.
            CallRefused: The version could not be made durable; nothing has changed.
        """
        with self._lock:
            before = self._state.version_of(self._topic_configs.table).state_version or 0
            if state_version is not None and state_version < before:
                raise ValueError(f"is {state_version}, below {before}, which is in force")
            if state_version is not None and state_version > MAX_STATE_VERSION:
                raise ValueError(f"is {state_version}, above the limit of {MAX_STATE_VERSION}")
            if state_version is None:
                self._topic_configs.next_state_version()
            after = before + 1 if state_version is None else state_version
            self._state = replace(self._state, broker_id=broker_id, state_version=after)
            return after

    def change_permission(self, permission: int) -> None:
        """Changes what the broker allows. The table gets a version with the present time."""
        with self._lock:
            version = self._state.version_of(self._topic_configs.table)
            now = int(self._timing.wall_clock() * 1000)
            self._state = replace(
                self._state, permission=permission, changed_at_millis=max(now, version.timestamp_millis + 1)
            )

    def change_filter_servers(self, addresses: tuple[str, ...]) -> bool:
        """Takes the addresses of the filter servers; returns whether they differ from those before."""
        with self._lock:
            if self._state.filter_servers == addresses:
                return False
            self._state = replace(self._state, filter_servers=addresses)
            return True
