"""The controller that keeps one broker registered, from start to stop (RocketMQ: BrokerController)."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial

import structlog
from namesrv_api.v1.route_data_pb2 import REMOVAL_REASON_BROKER_DOWN

from broker_agent.agent_service import BrokerAgentServicer
from broker_agent.auth import AgentSecurity
from broker_agent.broker_outer_api import BrokerOuterAPI, RegistrationResults
from broker_agent.broker_probe import BrokerProbe
from broker_agent.clients.client_service import SERVICE as CLIENT_SERVICE
from broker_agent.clients.client_service import ClientQueries, ClientServer
from broker_agent.clients.managers import ClientManagers
from broker_agent.listener import SERVICE as AGENT_SERVICE
from broker_agent.listener import AgentServer, Callers
from broker_agent.name_server import NamesrvTarget
from broker_agent.namesrv_list import NamesrvList
from broker_agent.observability import AgentMetrics, AgentObservability
from broker_agent.registration import BrokerState, CurrentBroker
from broker_agent.settings import AgentSettings
from broker_agent.timing import ChangeThread, PeriodicThread, RegistrationThread, Timing
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.slave_synchronize import MasterAgent, SlaveSynchronize
from broker_agent.topics.topic_service import SERVICE as TOPIC_SERVICE
from broker_agent.topics.topic_service import TopicConfigServicer
from namesrv_common.endpoints import Endpoint
from namesrv_common.process.settings_cli import certificates
from namesrv_common.process.shutdown import STEP_SECONDS, STOP_LISTENER_SECONDS, run_blocking_step
from namesrv_common.server.metrics_http import TELEMETRY_SECONDS

REGISTER_BROKER_TIMEOUT_SECONDS = 6.0
"""Longest time of one round of registrations (RocketMQ: registerBrokerTimeoutMills); a round ends within its period."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BrokerController:
    """Registers at start, then periodically, and at once whenever something has changed; unregisters at stop."""

    def __init__(
        self,
        settings: AgentSettings,
        topic_configs: TopicConfigManager,
        namesrv_list: NamesrvList,
        probe: BrokerProbe,
        timing: Timing,
    ) -> None:
        """Takes the listeners' ports and prepares everything else; calls nobody yet.

        Raises:
            StartError: A port is in use, or certificates or variables OTEL_... cannot be used.
        """
        self._settings = settings
        self._observation = AgentObservability(settings.metrics_listen)
        self._security = AgentSecurity(settings)
        self._topic_configs = topic_configs
        self._namesrv_list = namesrv_list
        self._probe = probe
        self._timing = timing
        self._stopping = threading.Event()
        self._clients = ClientManagers(timing)
        self._current = CurrentBroker(BrokerState.of(settings), topic_configs, timing)
        self._results = RegistrationResults(lambda: self._current.state.is_slave, topic_configs.update_order_topics)
        self._outer_api = BrokerOuterAPI(
            lambda: namesrv_list.endpoints,
            self._target,
            self._current.registration,
            min(REGISTER_BROKER_TIMEOUT_SECONDS, settings.period_seconds),
            timing,
            on_results=self._results.take,
            forget=self._observation.calls.forget,
        )
        self._listen()
        self._changes = ChangeThread(self._outer_api.register_changes, timing)
        connect = partial(MasterAgent, security=self._security.to_agents)
        self._slave_synchronize = SlaveSynchronize(topic_configs, self._master_agent, connect, timing)
        register = partial(self._outer_api.register_broker_all, force=settings.force_register)
        self._periodic = RegistrationThread(register, settings.period_seconds, timing)
        self._files = PeriodicThread("broker-agent-files", self._security.look, timing)

    def start(self) -> None:
        """Registers with all name servers, forced, and starts everything that runs in the background.

        Returns after the registration timeout at the latest; a name server that is down prevents nothing. The order is
        RocketMQ's: topics, listeners, calls to name servers, file watch, housekeeping, registration, timers.
        """
        self._observation.start()
        self._server.start()
        self._client_server.start()
        _log.info("client_listener_started", listening_on=str(self.listening_on))
        self._namesrv_list.start()
        self._namesrv_list.on_change = self._outer_api.follow_list
        self._outer_api.follow_list(open_now=False)
        self._topic_configs.on_change = lambda _table: self._changes.changed()
        self._topic_configs.start()
        self._clients.filter_servers.on_change = self._take_filter_servers
        self._slave_synchronize.start()
        self._outer_api.is_suspended = not self._probe.first_look()
        self._outer_api.register_broker_all(force=True)
        self._periodic.start()
        self._files.start()
        self._changes.start()
        self._probe.on_down = partial(self._outer_api.unregister_broker_all, REMOVAL_REASON_BROKER_DOWN, wait=False)
        self._probe.on_up = self._broker_up
        self._probe.start()
        _log.info(
            "agent_started",
            broker_name=self._settings.broker_name,
            broker_id=self._settings.broker_id,
            topics=len(self._topic_configs.table.topics),
            name_servers=[str(endpoint) for endpoint in self._namesrv_list.endpoints],
            listening_on=str(self.listening_on),
            fast_listening_on=str(self.fast_listening_on),
            metrics=str(self._observation.endpoint) if self._observation.endpoint else None,
        )

    def stop(self) -> None:
        """Unregisters everywhere, or hands over, and ends all threads, in a few seconds.

        A step that hangs or fails is logged and left behind.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._server.enter_shutdown()
        run_blocking_step("probe", self._probe.stop)
        run_blocking_step("changes", self._changes.stop)
        self._outer_api.stop_registering()
        leave = (
            self._outer_api.hand_over_all
            if self._settings.on_stop == "handover"
            else self._outer_api.unregister_broker_all
        )
        run_blocking_step("name_servers", leave, self._outer_api.register_seconds / 2 + STEP_SECONDS)
        run_blocking_step("calls", self._outer_api.close)
        run_blocking_step("name_server_list", self._namesrv_list.stop)
        run_blocking_step("slave_synchronize", self._slave_synchronize.stop)
        run_blocking_step("files", self._files.stop)
        run_blocking_step("periodic", self._periodic.stop)
        run_blocking_step("order_topics", self._results.stop)
        run_blocking_step("topics", self._topic_configs.stop)
        run_blocking_step("client_listener", self._client_server.stop, STOP_LISTENER_SECONDS)
        run_blocking_step("listener", self._server.stop, STOP_LISTENER_SECONDS)
        run_blocking_step("telemetry", self._observation.stop, TELEMETRY_SECONDS)
        _log.info("agent_stopped")

    def _listen(self) -> None:
        operated = BrokerAgentServicer(
            self._current,
            self._topic_configs,
            self._outer_api,
            self._results,
            None if self._settings.probe == "none" else self._probe,
        )
        topics = TopicConfigServicer(self._topic_configs, lambda: self._current.state.is_slave)
        security = self._security
        callers = Callers(security.listener, security.rule, self._observation.observers)
        self._server = AgentServer(
            self._settings.fast_listen_endpoint,
            [(AGENT_SERVICE, operated), (TOPIC_SERVICE, topics), (CLIENT_SERVICE, ClientQueries(self._clients))],
            callers,
        )
        with ExitStack() as taken:
            taken.callback(self._server.stop)
            self._client_server = ClientServer(
                self._settings.listen_endpoint, self._clients, lambda: self._current.state, callers
            )
            taken.callback(self._client_server.stop)
            shown = partial(certificates, security.listener, security.to_name_servers)
            metrics = AgentMetrics(self._outer_api, self._probe, self._topic_configs, self._clients, shown)
            self._observation.listen(metrics, lambda: self._periodic.problem, lambda: self._server.not_serving)
            taken.pop_all()
        self.listening_on = self._client_server.endpoint
        """Where the ordinary listener is, for clients."""
        self.fast_listening_on = self._server.endpoint
        """Where the fast listener is, for operators and other agents (RocketMQ: fastRemotingServer)."""
        security.on_permits_reloaded = self._check_open_calls

    def _check_open_calls(self) -> None:
        """Permits have changed: ends the calls that they do not admit."""
        for server in (self._server, self._client_server):
            server.check_again()

    def _target(self, endpoint: Endpoint) -> NamesrvTarget:
        settings = self._settings
        return NamesrvTarget(
            endpoint,
            f"broker-agent {settings.broker_name}-{settings.broker_id}",
            self._outer_api.register_broker,
            self._timing,
            keepalive_seconds=settings.keepalive_time_millis / 1000,
            period_seconds=settings.period_seconds,
            compressed=settings.compressed_register,
            on_accepted=self._server.set_serving,  # from the first acceptance on
            observe=self._observation.calls.of(endpoint),
            security=self._security.to_name_servers,
        )

    def _take_filter_servers(self, addresses: tuple[str, ...]) -> None:
        if self._current.change_filter_servers(addresses):
            self._changes.changed()

    def _broker_up(self) -> None:
        self._outer_api.is_suspended = False
        self._outer_api.register_changes()

    def _master_agent(self) -> Endpoint | None:
        """The agent that a slave copies its topics from; None where the broker itself copies them."""
        master = self._results.master
        if master is None or self._topic_configs.follows:
            return None
        return self._settings.agent_of_master(master.addr, self.fast_listening_on.port)
