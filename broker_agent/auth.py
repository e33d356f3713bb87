"""Callers of the agent's two listeners: certificates, permits, and what each may have the agent do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.descriptor import MethodDescriptor

from broker_agent.errors import StartError
from broker_agent.settings import AgentSettings
from namesrv_common.client.channels import ClientFiles, ClientSecurity
from namesrv_common.errors import Refused, not_permitted
from namesrv_common.files.watched_file import CHECK_SECONDS
from namesrv_common.server.permits import (
    AgentAction,
    OpenCalls,
    Permits,
    PermitsError,
    log_of_refusals,
    principal_of,
    reloaded_permits,
    warn_of_permits,
)
from namesrv_common.server.rpc_handlers import Context, Gate
from namesrv_common.server.shares import MACHINE, sharer_at
from namesrv_common.tls.certificates import CertificateError, identities
from namesrv_common.topic_names import Group

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_log_refused = log_of_refusals(time.monotonic)

# The action that each call of the agent is: what a permit must grant for it.

COMMANDS = frozenset({AgentAction.FILTER_SERVERS, AgentAction.TOPICS, AgentAction.OPERATE})
"""Actions that change what the broker is registered as."""

_READ = (AgentAction.READ, AgentAction.TOPICS, AgentAction.OPERATE)
"""Principals that may change something may also read."""

ACTIONS: Mapping[str, tuple[AgentAction, ...]] = {
    "GetAgentStatus": _READ,
    "ChangeBrokerRole": (AgentAction.OPERATE,),
    "UpdateBrokerPermission": (AgentAction.OPERATE,),
    "CreateOrUpdateTopic": (AgentAction.TOPICS,),
    "DeleteTopic": (AgentAction.TOPICS,),
    "GetTopic": _READ,
    "ListTopics": (*_READ, AgentAction.REPLICATE),
    "OpenClientChannel": (AgentAction.CLIENTS,),
    "Heartbeat": (AgentAction.CLIENTS,),
    "UnregisterClient": (AgentAction.CLIENTS,),
    "ListConsumerIds": (*_READ, AgentAction.CLIENTS),  # consumers share the queues out among themselves
    "ListConsumerConnections": _READ,
    "ListProducerConnections": _READ,
    "ListConsumerFilters": _READ,
    "RegisterFilterServer": (AgentAction.FILTER_SERVERS,),
}
"""By a call's name: actions that permit it. A permit for any one is enough."""


Rule = Callable[[str, Context], None]
"""Checks a call by its name. Raises NOT_AUTHENTICATED or NOT_PERMITTED."""


def by_permits(permits: Callable[[], Permits], group: Group) -> Rule:
    """Returns the rule of a permits file: what it does not grant is denied."""

    def check(name: str, call: Context) -> None:
        principal_of(call, permits()).check_agent(ACTIONS[name], group)

    return check


def own_group_commands(own_names: Callable[[], frozenset[str]], group: Group) -> Rule:
    """Returns the rule for mutual TLS without permits: commands come from this machine or from the broker's own group.

    The agents of a group have a name in common in their certificates. Everything else is for every certificate.

    Args:
        own_names: Returns the names in this agent's certificate.
        group: The broker's group.
    """

    def check(name: str, call: Context) -> None:
        actions = ACTIONS[name]
        if not COMMANDS.issuperset(actions) or sharer_at(call.peer()) is MACHINE:
            return
        names = list(identities(call.auth_context()))
        own = {name for name in own_names() if name != "localhost" and not name.startswith("*.")}  # many have those
        if own.isdisjoint(names):
            who = names[0] if names else "a caller without a name"
            raise not_permitted(who[:127], " or ".join(action.value for action in actions), "/".join(group))

    return check


class MethodGate(Gate):
    """The gate of one call of a listener: asks the rule, and logs whom it refuses."""

    def __init__(self, rule: Rule, method: MethodDescriptor, open_calls: OpenCalls) -> None:
        self._rule = rule
        self._method = method
        self._open_calls = open_calls

    def enter(self, context: Context) -> None:
        """Checks the caller. Raises Refused."""
        try:
            self._rule(self._method.name, context)
        except Refused as error:
            _log_refused(self._method.full_name, context.peer(), error)
            raise

    def while_allowed(self, entered: None, context: Any) -> AbstractContextManager[None]:  # noqa: ARG002 - see Gate
        """A context that ends with Refused once changed permits do not admit the call."""
        return self._open_calls.while_allowed(partial(self.enter, context))


class AgentSecurity:
    """The agent's certificates, token and permits. Without TLS there are no certificates."""

    def __init__(self, settings: AgentSettings) -> None:
        """Reads the files. Raises StartError, with the file and the reason, if one cannot be used."""
        try:
            self.listener = settings.listener_tls()
            """For both listeners."""
            self.to_name_servers = _client(settings, settings.token_file, settings.tls_server_name)
            # With a token of its own, and without the expected name: those of name servers never go to an agent.
            self.to_agents = _client(settings, settings.master_token_file) if settings.listens_with_tls else None
            """For a slave: the credentials for calls to its master's agent. Agents of a fleet are alike: that one has
            TLS if this one has.
            """
            self.on_permits_reloaded: Callable[[], None] = lambda: None
            """Called by ``look`` when permits were read anew."""
            path = settings.permits_file
            self._permits = reloaded_permits(path) if path else None
        except (CertificateError, PermitsError) as error:
            raise StartError(str(error)) from error
        self.rule: Rule = lambda *_: None
        """For both listeners."""
        permits, listener, group = self._permits, self.listener, (settings.cluster, settings.broker_name)
        if permits is not None:
            self.rule = by_permits(lambda: permits.value, group)
        elif listener is not None and settings.tls_client_ca is not None:
            self.rule = own_group_commands(lambda: listener.value.names, group)
        if self._permits is not None:
            warn_of_permits(self._permits.value, with_tls=settings.listens_with_tls, client_ca=settings.tls_client_ca)
        if self.listener is None:
            for listen in (settings.listen_endpoint, settings.fast_listen_endpoint):
                if not listen.is_loopback:
                    problem = "everybody on the network can read and change what is said here"
                    _log.warning("listener_without_tls", listen=str(listen), problem=problem)

    def look(self) -> float:
        """Checks whether the listeners' files and the permits have changed, though nobody may call.

        Returns the seconds to the next look.
        """
        if self.listener is not None:
            self.listener.refreshed()
        if self._permits is not None:
            before = self._permits.generation
            if self._permits.refreshed()[0] != before:
                self.on_permits_reloaded()
        return CHECK_SECONDS


def _client(settings: AgentSettings, token: Path | None, server_name: str | None = None) -> ClientSecurity | None:
    if settings.tls_ca is None:
        return None
    return ClientSecurity(ClientFiles(settings.tls_ca, settings.tls_cert, settings.tls_key, token, server_name))
