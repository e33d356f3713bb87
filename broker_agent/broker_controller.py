"""Keeps one broker registered, from start to stop (RocketMQ: BrokerController)."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import structlog
from broker_agent_api.v1 import broker_agent_service_pb2

from broker_agent.agent_server import AgentServer
from broker_agent.broker_outer_api import BrokerOuterAPI, Results
from broker_agent.connection_options import ConnectionOptions
from broker_agent.namesrv_target import NamesrvTarget
from broker_agent.registration import broker_identity, registration_of
from broker_agent.schedule import RegistrationSchedule
from broker_agent.settings import AgentSettings
from broker_agent.timing import Timing
from broker_agent.topic_config import TopicConfigTable
from groundwork.endpoints import Endpoint, parse_endpoints
from groundwork.version import __version__

UNREGISTER_SECONDS = 3.0
"""Time for all unregistrations at the end (RocketMQ gives each name server that much)."""
JOIN_SECONDS = 2.0
"""Time for the periodic thread to end once nothing holds it up."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Master:
    """What a slave knows of its master."""

    addr: str
    """Where clients reach it."""
    ha_server_addr: str | None
    """Where slaves replicate from; None if it named no such address."""


class BrokerController:
    """Registers at start, then periodically, and whenever a name server opens a channel; unregisters at stop."""

    def __init__(
        self,
        settings: AgentSettings,
        table: TopicConfigTable,
        timing: Timing | None = None,
        schedule: RegistrationSchedule | None = None,
    ) -> None:
        """Takes the listener's port and prepares everything else; calls nobody yet.

        Args:
            settings: Settings of the agent.
            table: The broker's topics.
            timing: Clocks and randomness; the real ones by default.
            schedule: When periodic registrations are due; as the settings say by default.

        Raises:
            StartError: The port is in use.
        """
        timing = timing or Timing()
        self._settings = settings
        self._registration = registration_of(settings, table)
        self._register_seconds = settings.register_broker_timeout_millis / 1000
        self._schedule = schedule or RegistrationSchedule(settings.register_name_server_period_millis, timing)
        self._stopping = threading.Event()
        self._master: Master | None = None
        self._master_lock = threading.Lock()
        self._server = AgentServer(Endpoint.parse(settings.listen, allow_port_zero=True), self.status)
        options = ConnectionOptions(
            settings.connect_timeout_millis, settings.keepalive_time_millis, settings.keepalive_timeout_millis
        )
        holder = f"broker-agent {settings.broker_name}-{settings.broker_id}"
        self._targets = tuple(
            NamesrvTarget(endpoint, holder, options, self, timing) for endpoint in parse_endpoints(settings.namesrv)
        )
        self._outer_api = BrokerOuterAPI(self._targets, timing)
        self._periodic = threading.Thread(target=self._register_periodically, name="broker-agent-periodic")

    @property
    def listening_on(self) -> Endpoint:
        """Where the agent's own listener is."""
        return self._server.endpoint

    @property
    def master(self) -> Master | None:
        """The master, of a slave that has learnt it."""
        return self._master

    def start(self) -> None:
        """Registers with all name servers, forced, and starts everything that goes on in the background.

        Returns after the registration timeout at the latest; a name server that is down prevents nothing.
        """
        self.register_broker_all(force=True)
        self._server.start()
        self._periodic.start()
        _log.info(
            "agent_started",
            broker_name=self._settings.broker_name,
            broker_id=self._settings.broker_id,
            topics=len(self._registration.topic_configs),
            listening_on=str(self.listening_on),
        )

    def stop(self) -> None:
        """Unregisters everywhere and ends all threads, in a few seconds at most."""
        self._stopping.set()
        self._server.enter_shutdown()
        self._outer_api.unregister_broker_all(broker_identity(self._settings), timeout_seconds=UNREGISTER_SECONDS)
        for target in self._targets:
            target.close()
        self._outer_api.close()
        if self._periodic.ident is not None:
            self._periodic.join(JOIN_SECONDS)
        self._server.stop()
        _log.info("agent_stopped")

    def register_broker_all(self, *, force: bool) -> None:
        """One round of registrations.

        Args:
            force: Send the table without asking first whether it changed. A slave always does: only the answer to a
                registration names its master.
        """
        results = self._outer_api.register_broker_all(
            self._registration, force=force or self._settings.is_slave, timeout_seconds=self._register_seconds
        )
        _log.debug("round_of_registrations", accepted=len(results))
        self._learn_master(results)

    def registration_wanted(self, target: NamesrvTarget) -> None:
        """Registers with that name server at once. Called by the target."""
        self._outer_api.register_broker(
            target, self._registration, timeout_seconds=self._register_seconds, on_results=self._learn_master
        )

    def registration_accepted(self) -> None:
        """Reports SERVING from the first acceptance on. Called by the targets."""
        self._server.set_serving()

    def status(self) -> broker_agent_service_pb2.GetAgentStatusResponse:
        """What would be registered now, and how the name servers are."""
        master = self._master
        version = self._registration.data_version
        return broker_agent_service_pb2.GetAgentStatusResponse(
            version=__version__,
            cluster_name=self._settings.cluster,
            broker_name=self._settings.broker_name,
            broker_id=self._settings.broker_id,
            broker_addr=self._settings.broker_addr,
            ha_server_addr=self._settings.ha_server_addr,
            topic_count=len(self._registration.topic_configs),
            data_version_counter=version.counter,
            data_version_timestamp_millis=version.timestamp_millis,
            master_addr=master.addr if master else None,
            master_ha_server_addr=master.ha_server_addr if master else None,
            targets=[target.status() for target in self._targets],
        )

    def _register_periodically(self) -> None:
        while not self._stopping.wait(self._schedule.next_delay()):
            self.register_broker_all(force=self._settings.force_register)

    def _learn_master(self, results: Results) -> None:
        """Takes the first master that is named; keeps what is known if none is.

        RocketMQ takes the first answer's, even if that name server has no master yet, and so pauses the slave.
        """
        if not self._settings.is_slave:
            return
        master = next((Master(r.master_addr, r.ha_server_addr) for r in results if r.master_addr is not None), None)
        with self._master_lock:
            if master is None or master == self._master:
                return
            self._master = master
        _log.info("master_learnt", master_addr=master.addr, master_ha_server_addr=master.ha_server_addr)
