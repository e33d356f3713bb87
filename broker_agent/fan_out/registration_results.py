"""The combined answers to registrations: the broker's master, and which topics are ordered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from broker_agent.fan_out.broker_outer_api import Results
from broker_agent.rpc_errors import CallRefused

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Master:
    """The master as a slave knows it."""

    addr: str
    """Where clients reach it."""
    ha_server_addr: str | None
    """Where slaves replicate from; None if it named no such address."""


class RegistrationResults:
    """Takes the answers of a round (RocketMQ: handleRegisterBrokerResult)."""

    def __init__(
        self,
        is_slave: Callable[[], bool],
        ha_master_address: str | None,
        update_order_topics: Callable[[Collection[str]], None],
    ) -> None:
        """Creates it.

        Args:
            is_slave: Whether the broker is a slave now.
            ha_master_address: Where a slave replicates from, whatever the answers say; None to use the answers.
            update_order_topics: Told which topics are ordered.
        """
        self._is_slave = is_slave
        self._ha_master_address = ha_master_address
        self._update_order_topics = update_order_topics
        self._lock = threading.Lock()
        self._master: Master | None = None

    @property
    def master(self) -> Master | None:
        """The master, of a slave that has learnt it."""
        return self._master if self._is_slave() else None

    def take(self, results: Results, *, check_order_config: bool) -> None:
        """Takes the answers of a round.

        Args:
            results: The answers, in the order in which they came.
            check_order_config: Whether the answers say which topics are ordered.
        """
        if self._is_slave():
            self._learn_master(results)
        ordered = next((result.order_topic_config for result in results if result.order_topic_config), None)
        if check_order_config and ordered:
            try:
                self._update_order_topics(ordered.keys())
            except CallRefused as error:
                _log.warning("order_topics_not_updated", error=str(error))

    def forget_master(self) -> None:
        """The broker's role has changed."""
        with self._lock:
            self._master = None

    def _learn_master(self, results: Results) -> None:
        """Takes the first master that is named; if none is, keeps the known one.

        RocketMQ takes the first answer's, even if that name server has no master yet, and so pauses the slave.
        """
        fixed = self._ha_master_address
        named = (Master(r.master_addr, fixed or r.ha_server_addr) for r in results if r.master_addr is not None)
        master = next(named, None)
        with self._lock:
            if master is None or master == self._master:
                return
            self._master = master
        _log.info("master_learnt", master_addr=master.addr, master_ha_server_addr=master.ha_server_addr)
