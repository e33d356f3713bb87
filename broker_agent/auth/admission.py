"""The admission of calls to the agent, on both listeners, before they are parsed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from google.protobuf.descriptor import MethodDescriptor

from broker_agent.auth.actions import ACTIONS, COMMANDS
from groundwork.errors import NotAuthenticated, NotPermitted
from groundwork.permits import Call, Group, Permits, RefusalLog, of_certificate, of_token, shown_names
from groundwork.rpc_handlers import OpenGate

_LOOPBACK_PEERS = ("ipv4:127.", "ipv6:[::1]:", "ipv6:%5B::1%5D:", "ipv6:[::ffff:127.", "ipv6:%5B::ffff:127.")
"""What gRPC's names of peers on this machine begin with."""


class Rule(Protocol):
    """Says who may do what."""

    def check(self, name: str, call: Call) -> None:
        """Checks a call by its full name. Raises NotAuthenticated or NotPermitted."""


class Everybody:
    """The rule where nobody is asked who he is."""

    def check(self, name: str, call: Call) -> None:
        """Nothing to check."""


class ByPermits:
    """The rule of a permits file: what it does not grant is denied."""

    def __init__(self, permits: Callable[[], Permits], group: Group) -> None:
        """Takes what gives the permits in force, and the broker's group."""
        self._permits = permits
        self._group = group

    def check(self, name: str, call: Call) -> None:
        """Finds out who calls, and whether he may. Raises NotAuthenticated or NotPermitted."""
        permits = self._permits()
        principal = of_token(call, permits) or of_certificate(list(shown_names(call)), permits)
        principal.check_agent(ACTIONS[name], self._group)


class OwnGroupCommands:
    """The rule for mutual TLS without permits: commands come from this machine or from the broker's own group.

    The agents of a group have a name in common in their certificates. Everything else is for every certificate.
    """

    def __init__(self, own_names: Callable[[], frozenset[str]], group: Group) -> None:
        """Takes what gives the names in this agent's certificate, and the broker's group."""
        self._own_names = own_names
        self._group = group

    def check(self, name: str, call: Call) -> None:
        """Raises NotPermitted."""
        actions = ACTIONS[name]
        if not COMMANDS.issuperset(actions) or call.peer().startswith(_LOOPBACK_PEERS):
            return
        names = list(shown_names(call))
        if not any(is_identity(shown) and shown in self._own_names() for shown in names):
            who = names[0] if names else "a caller without a name"
            raise NotPermitted(who[:127], " or ".join(action.value for action in actions), "/".join(self._group))


class AgentAdmission:
    """The gate of both listeners: asks the rule, and logs whom it refuses. Thread-safe."""

    def __init__(self, rule: Rule | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Lets everybody in by default."""
        self._rule = rule or Everybody()
        self._log = RefusalLog(monotonic)

    def check(self, name: str, call: Call) -> None:
        """Checks a call by its full name, ``package.Service.Call``. Raises CallRefused."""
        try:
            self._rule.check(name, call)
        except (NotAuthenticated, NotPermitted) as error:
            self._log.refused(name, call.peer(), error)
            raise

    def gate_of(self, method: MethodDescriptor) -> MethodGate:
        """The gate of one call of the asyncio listener."""
        return MethodGate(self, method.full_name)


class MethodGate(OpenGate):
    """The gate of one call of the asyncio listener."""

    def __init__(self, admission: AgentAdmission, name: str) -> None:
        self._admission = admission
        self._name = name

    def enter(self, context: Call) -> None:
        """A call begins. Raises CallRefused."""
        self._admission.check(self._name, context)


def is_identity(name: str) -> bool:
    """Whether a name in a certificate says who shows it: many machines have the others."""
    return name != "localhost" and not name.startswith("*.")
