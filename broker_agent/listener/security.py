"""Certificates of the agent, for its listeners and for its calls, and the permits of its callers."""

from __future__ import annotations

import structlog

from broker_agent.auth.admission import AgentAdmission, ByPermits, Everybody, OwnGroupCommands, Rule
from broker_agent.errors import StartError
from broker_agent.settings import AgentSettings
from groundwork.certificates import CertificateError
from groundwork.channels import ClientFiles, ClientSecurity
from groundwork.hot_reload import HotReloaded
from groundwork.listener_tls import ListenerTls
from groundwork.permits import Permits, PermitsError, reloaded_permits, warn_of_permits

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class AgentSecurity:
    """The agent's certificates, token and permits. Without TLS there are no certificates."""

    def __init__(self, settings: AgentSettings) -> None:
        """Reads the files.

        Raises:
            StartError: One of them cannot be used; the text names it and says why.
        """
        try:
            self.listener = settings.listener_tls()
            """For both listeners."""
            self.to_name_servers = settings.client_security()
            self.to_agents = _to_agents(settings)
            """For a slave: the credentials for calls to its master's agent. Agents of a fleet are alike: that one has
            TLS if this one has.
            """
            self._permits = reloaded_permits(settings.permits_file) if settings.permits_file else None
        except (CertificateError, PermitsError) as error:
            raise StartError(str(error)) from error
        self.admission = AgentAdmission(_rule(settings, self._permits, self.listener))
        """Of both listeners."""
        if self._permits is not None:
            warn_of_permits(self._permits.value, with_tls=settings.listens_with_tls, client_ca=settings.tls_client_ca)
        if self.listener is None:
            for listen in (settings.listen_endpoint, settings.fast_listen_endpoint):
                if not listen.is_loopback:
                    problem = "everybody on the network can read and change what is said here"
                    _log.warning("listener_without_tls", listen=str(listen), problem=problem)

    def look(self) -> None:
        """Checks whether the listeners' files and the permits have changed; a change is logged though nobody calls."""
        if self.listener is not None:
            self.listener.look()
        if self._permits is not None:
            self._permits.refreshed()


def _rule(settings: AgentSettings, permits: HotReloaded[Permits] | None, listener: ListenerTls | None) -> Rule:
    group = (settings.cluster, settings.broker_name)
    if permits is not None:
        return ByPermits(lambda: permits.value, group)
    if listener is not None and settings.tls_client_ca is not None:
        return OwnGroupCommands(lambda: listener.names, group)
    return Everybody()


def _to_agents(settings: AgentSettings) -> ClientSecurity | None:
    """With a token of its own, and without the expected name: those of name servers never go to an agent."""
    if settings.tls_ca is None or not settings.listens_with_tls:
        return None
    return ClientSecurity(ClientFiles(settings.tls_ca, settings.tls_cert, settings.tls_key, settings.master_token_file))
