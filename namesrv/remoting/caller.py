"""The caller behind a connection: its address, its certificate, its channel, what it may do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from functools import partial

from namesrv.app.access import Authorizer, call_of, principal_name
from namesrv.app.channels import ChannelStreams
from namesrv.core.errors import Refused, not_permitted
from namesrv.core.model import Doubt
from namesrv_common.server.permits import NamedBroker, OpenCalls, Permission, of_certificate
from namesrv_common.server.rpc_handlers import NO_LIMIT
from namesrv_common.server.shares import sharer_at
from namesrv_common.tls.certificates import identities

ANONYMOUS = "remoting:anonymous"
"""The name under which permits know a connection that shows no certificate."""

Brokers = Callable[[], Iterable[NamedBroker]]
"""Finds the brokers that a call is about, as they are now."""


class Grade(Enum):
    """What ``remoting_allow`` grants, in RocketMQ's protocol, which proves no identity."""

    LOOKUPS = "lookups"
    REGISTRATIONS = "registrations"
    OPERATORS = "operators"
    SETTINGS = "settings"
    """To change settings; to read them is an operator's."""


_PERMISSIONS = {
    Grade.LOOKUPS: Permission.LOOKUP,
    Grade.REGISTRATIONS: Permission.REGISTER,
    Grade.OPERATORS: Permission.ADMINISTER,
    Grade.SETTINGS: Permission.ADMINISTER,
}


class Caller:
    """The other end of one connection, which becomes a channel with its first registration."""

    def __init__(self, peer: str, names: Mapping[str, Sequence[bytes]], close: Callable[[], None]) -> None:
        """Takes its address, and the names in its certificate as gRPC keys them; none if it shows no certificate."""
        self.name = f"rocketmq:{peer}"
        """Its name in the log."""
        self.names = list(identities(names)) if names else [ANONYMOUS]
        self.sharer = sharer_at(self.name)
        """Whose shares it takes: its address, as this protocol proves no identity."""
        self.owner = self.sharer.name
        """The owner of its work, by the same rule."""
        self._close = close
        self._channel_id: str | None = None
        self._check: Callable[[], None] | None = None
        self._end_channel: Callable[[Doubt | None], None] | None = None

    @property
    def journal_name(self) -> str:
        """Its name in the journal: that in the permits, if there are any."""
        return principal_name() or self.name

    def channel(self, channels: ChannelStreams, gate: Gate, brokers_of: Callable[[str], Iterable[NamedBroker]]) -> str:
        """Returns the channel id of the connection. It is an open call, and ends where its brokers lose their permit.

        Raises as ``ChannelStreams.connect``.
        """
        if self._channel_id is None:
            self._channel_id = channel_id = channels.connect(self.name, self._close, self.sharer)
            self._check = partial(gate.check, self, Grade.REGISTRATIONS, partial(brokers_of, channel_id))
            gate.open_calls.add(self)

            def end_channel(doubt: Doubt | None) -> None:
                channels.disconnected(channel_id, doubt)
                gate.open_calls.remove(self)

            self._end_channel = end_channel
        return self._channel_id

    def check(self) -> None:
        """Raises NOT_AUTHENTICATED and NOT_PERMITTED once changed permits do not admit its brokers."""
        if self._check is not None:
            self._check()

    def end(self, refusal: Refused) -> None:  # noqa: ARG002 - this protocol has no way to tell it to its peer
        """Closes the connection. Its channel ends at once, even if the peer reads nothing."""
        self.left()
        self._close()

    def left(self, doubt: Doubt | None = None) -> None:
        """The connection has ended."""
        # Kept, they would be cycles: the caller, and what was read, would wait for the garbage collector.
        end_channel, self._end_channel, self._check = self._end_channel, None, None
        if end_channel is not None:
            end_channel(doubt)


class Gate:
    """Decides who may call what: by the grades that the operator allows, and by the permits."""

    def __init__(self, allowed: Iterable[Grade], authorizer: Authorizer | None) -> None:
        self._allowed = frozenset(allowed)
        self._authorizer = authorizer
        self.open_calls = OpenCalls() if authorizer is None else authorizer.open_calls

    def check(self, caller: Caller, grade: Grade, brokers: Brokers | None = None) -> None:
        """Checks a call, and has the journal know its caller by the name in the permits.

        Raises NOT_AUTHENTICATED and NOT_PERMITTED.
        """
        try:
            if grade not in self._allowed:
                problem = f"call for {grade.value} here; that needs {grade.value} in remoting_allow"
                refused = not_permitted(caller.name, problem)
                refused.metadata["grade"] = grade.value
                raise refused
            if self._authorizer is not None:
                principal = of_certificate(caller.names, self._authorizer.permits())
                principal.check(_PERMISSIONS[grade])
                if brokers is not None:
                    principal.check_brokers(brokers())
                call_of(principal)
        except Refused as error:
            if self._authorizer is not None:
                self._authorizer.refused(f"rocketmq.{grade.value}", caller.name, error)
            raise

    def while_allowed(self, caller: Caller, grade: Grade, brokers: Brokers | None) -> AbstractContextManager[None]:
        """Checks a call as ``check`` does. The context ends with the same errors once changed permits do not admit it.

        It must be entered in this very step.
        """
        check = partial(self.check, caller, grade, brokers)
        check()
        return NO_LIMIT if self._authorizer is None else self.open_calls.while_allowed(check)
