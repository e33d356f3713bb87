"""Certificates of the agent, for its listeners and for its calls."""

from __future__ import annotations

import structlog

from broker_agent.errors import StartError
from broker_agent.settings import AgentSettings
from groundwork.connections.certificates import CertificateError
from groundwork.connections.channels import ClientFiles, ClientSecurity

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class AgentSecurity:
    """The agent's certificates and token. All fields are None without TLS."""

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
        except CertificateError as error:
            raise StartError(str(error)) from error
        if self.listener is None:
            for listen in (settings.listen_endpoint, settings.fast_listen_endpoint):
                if not listen.is_loopback:
                    problem = "everybody on the network can read and change what is said here"
                    _log.warning("listener_without_tls", listen=str(listen), problem=problem)

    def look(self) -> None:
        """Checks whether the listeners' files have changed, so that a change is logged also while nobody connects."""
        if self.listener is not None:
            self.listener.look()


def _to_agents(settings: AgentSettings) -> ClientSecurity | None:
    """Without the token and the expected name, which are for name servers."""
    if settings.tls_ca is None or not settings.listens_with_tls:
        return None
    return ClientSecurity(ClientFiles(settings.tls_ca, settings.tls_cert, settings.tls_key))
