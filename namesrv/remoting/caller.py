"""The caller behind a connection: its address, its certificate, its channel, what it may do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar, cast

from namesrv_api.v1 import registration_service_pb2 as registration_pb

from namesrv.app.access import Authorizer, Context, call_of, principal_of
from namesrv.app.channels import ChannelStreams
from namesrv.core.errors import Refused, not_permitted
from namesrv.core.model import Doubt
from namesrv.remoting.wire.headers import Request
from namesrv_common.server.permits import Permission
from namesrv_common.server.rpc_handlers import NO_LIMIT
from namesrv_common.server.shares import sharer_at

ANONYMOUS = "remoting:anonymous"
"""The name under which permits know a connection that shows no certificate."""


CallT = TypeVar("CallT", bound=Callable[..., Any])


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


def _ended() -> None:
    """Stands for what is to be done with a connection once that has ended: nothing."""


class Caller:
    """The other end of one connection."""

    def __init__(self, peer: str, names: Mapping[str, Sequence[bytes]], close: Callable[[], None]) -> None:
        """A caller.

        Args:
            peer: Its address, HOST:PORT.
            names: The names in its certificate, as gRPC keys them; empty if it shows none.
        """
        self.name = f"rocketmq:{peer}"
        """Its name in the journal and the log."""
        self.sharer = sharer_at(self.name)
        """Whose shares it takes: its address, as this protocol proves no identity."""
        self.owner = self.sharer.name
        """The owner of its work, by the same rule."""
        self._close = close
        self._names = names or {"x509_common_name": [ANONYMOUS.encode()]}
        self._channels: ChannelStreams | None = None
        self._channel_id: str | None = None
        self._forget = _ended
        """Has the connection's channel not be checked again."""

    @property
    def context(self) -> Context:
        """This caller as the services of the contract know theirs."""
        return cast("Context", self)

    def channel(self, channels: ChannelStreams, gate: Gate) -> str:
        """Returns the channel id of the connection. A connection becomes a channel with its first registration.

        Args:
            gate: Closes it once changed permits do not admit its brokers.

        Raises:
            LIMIT_EXCEEDED: Too many channels are open, or of its address.
            SHUTTING_DOWN: The name server takes no more.
        """
        if self._channel_id is None:
            self._channel_id = channels.connect(self.name, self._close, self.sharer)
            self._channels = channels
            self._forget = gate.keep_checking(self, self._channel_id)
        return self._channel_id

    def end(self) -> None:
        """Closes the connection. Its channel ends at once, even if the peer reads nothing."""
        close = self._close
        self.left()
        close()

    def left(self, doubt: Doubt | None = None) -> None:
        if self._channels is not None and self._channel_id is not None:
            self._channels.disconnected(self._channel_id, doubt)
            self._channels = None
        # The connection has this caller: as a cycle both, and what was read, would wait for the garbage collector,
        # which comes late where nothing is going on.
        self._close = _ended
        self._forget()
        self._forget = _ended

    # As a context of gRPC

    def peer(self) -> str:
        """Its address, with the protocol."""
        return self.name

    def invocation_metadata(self) -> tuple[()]:
        """No metadata: this protocol has none that could be believed."""
        return ()

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The names in its certificate, as gRPC has them."""
        return self._names


@dataclass(slots=True, eq=False)
class _Connected:
    check: Callable[[], None]
    caller: Caller

    def end(self, _refusal: Refused) -> None:
        """Ends the connection, as this protocol has no other way to tell its peer."""
        self.caller.end()


class Gate:
    """Decides who may call what: by the grades that the operator allows, and by the permits."""

    def __init__(self, allowed: Iterable[Grade], authorizer: Authorizer | None) -> None:
        self._allowed = frozenset(allowed)
        self._authorizer = authorizer

    def allows(self, grade: Grade) -> bool:
        return grade in self._allowed

    def is_open(self, grade: Grade) -> bool:
        """Whether calls of a grade need no check: the operator allows them, and there are no permits."""
        return self._authorizer is None and grade in self._allowed

    def guarded(self, grade: Grade, call: CallT) -> CallT:
        """A call that is checked before it is made; the call itself where there is nothing to check."""
        if self.is_open(grade):
            return call

        def checked(request: Request, caller: Caller) -> Any:
            self.check(caller, grade)
            return call(request, caller)

        return cast("CallT", checked)

    def check(self, caller: Caller, grade: Grade, brokers_of: object = None) -> None:
        """Checks a call, and has the journal know its caller by the name in the permits.

        Args:
            brokers_of: A request of RegistrationService about the same brokers, or None if it is about no broker.

        Raises:
            NOT_AUTHENTICATED: The permits do not know who calls.
            NOT_PERMITTED: The caller may not.
        """
        try:
            if grade not in self._allowed:
                raise _not_allowed(caller.name, grade)
            if self._authorizer is not None:
                principal = principal_of(caller.context, self._authorizer.permits())
                principal.check(_PERMISSIONS[grade])
                if brokers_of is not None:
                    principal.check_brokers(self._authorizer.brokers(brokers_of))
                call_of(principal)
        except Refused as error:
            if self._authorizer is not None:
                self._authorizer.refused(f"rocketmq.{grade.value}", caller.name, error)
            raise

    def while_allowed(self, caller: Caller, grade: Grade, brokers_of: object) -> AbstractContextManager[None]:
        """Checks a call as ``check`` does. The context ends with the same errors once changed permits do not admit it.

        It must be entered in this very step.
        """
        check = partial(self.check, caller, grade, brokers_of)
        check()
        return NO_LIMIT if self._authorizer is None else self._authorizer.open_calls.while_allowed(check)

    def keep_checking(self, caller: Caller, channel_id: str) -> Callable[[], None]:
        """Ends the connection of a channel once changed permits do not admit the brokers that it has registered.

        Returns:
            A function to call when the connection has ended.
        """
        if self._authorizer is None:
            return _ended
        brokers = registration_pb.HandOverChannelRequest(channel_id=channel_id)
        connected = _Connected(partial(self.check, caller, Grade.REGISTRATIONS, brokers), caller)
        open_calls = self._authorizer.open_calls
        open_calls.add(connected)
        return partial(open_calls.remove, connected)


def _not_allowed(caller: str, grade: Grade) -> Refused:
    """The operator does not allow calls of a grade."""
    refused = not_permitted(caller, f"call for {grade.value} here; that needs {grade.value} in remoting_allow")
    refused.metadata["grade"] = grade.value
    return refused
