"""Access: which principal calls, and which calls and broker groups its permits allow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from groundwork.permits import Permission, Permits, Principal, RefusalLog, of_certificate, of_token, shown_names
from groundwork.shares import Sharer, Shares, sharer_at
from namesrv.app.quotas import FairShares
from namesrv.core.errors import NotAuthenticated, NotPermitted
from namesrv.core.model import BrokerKey, LiveKey
from namesrv.core.registrations import RouteInfoManager

# The caller of a call: the principal of its certificate or token, or the peer where there are no permits.

Context = grpc.aio.ServicerContext[Any, Any]

_caller: ContextVar[Principal | None] = ContextVar("caller", default=None)
"""The caller of the call that is being answered: each call runs in a task, or at least a context, of its own."""


def caller_of(context: Context) -> str:
    """The name of this call's caller in the journal."""
    principal = _caller.get()
    return context.peer() if principal is None else principal.name


def sharer_of(context: Context) -> Sharer:
    """Whose shares this call takes: its caller's by name; without permits, those of the address."""
    principal = _caller.get()
    return sharer_at(context.peer()) if principal is None else Sharer(principal.name, principal.administer)


def owner() -> str:
    """Who makes this call, by the permits; empty where there are none: nobody has proved then who he is."""
    principal = _caller.get()
    return "" if principal is None else principal.name


def check_permission(permission: Permission) -> None:
    """Checks that the caller may do more than the service of this call needs. Raises NotPermitted."""
    principal = _caller.get()
    if principal is not None:
        principal.check(permission)


def identify(context: Context, permits: Permits) -> Principal:
    """Finds out who calls, and sets what ``caller_of`` returns.

    If there is a token, it decides and not the certificate.

    Raises:
        NotAuthenticated: The call shows neither, or a token that the permits do not know.
    """
    principal = of_token(context, permits) or of_certificate(list(shown_names(context)), permits)
    _caller.set(principal)
    return principal


# The admission of every call before it is parsed: caller, permission, and room for one more.

_PERMISSIONS = {
    "RouteService": Permission.LOOKUP,
    "RegistrationService": Permission.REGISTER,
    "AdminService": Permission.ADMINISTER,
}

RequestT = TypeVar("RequestT")


class Authorizer:
    """Knows the permits in force and which groups a request is about; logs refused calls."""

    def __init__(
        self,
        permits: Callable[[], Permits],
        groups: Callable[[Any], Iterable[BrokerKey]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.permits = permits
        self.groups = groups
        self.refused = RefusalLog(monotonic).refused


class Entered(NamedTuple):
    """Who calls."""

    principal: Principal | None
    """None: there are no permits."""
    sharer: Sharer


class Admission:
    """The gate that every call of one method of the contract passes."""

    def __init__(self, method: MethodDescriptor, shares: FairShares, doorkeeper: Authorizer | None) -> None:
        """Makes it; without a doorkeeper everybody may call."""
        self._call = method.full_name
        self._permission = permission_of(method)
        self._shares = _shares_of(method, shares)
        self._doorkeeper = doorkeeper

    def enter(self, context: Context) -> Entered:
        """A call begins; ``leave`` must follow unless this raises.

        Raises:
            NotAuthenticated: It is not known who calls.
            NotPermitted: The caller may make no call of this service.
            Overloaded: There is no room for another one of its class, or its caller has no share of it left.
        """
        principal = None
        if self._doorkeeper is not None:
            try:
                principal = identify(context, self._doorkeeper.permits())
                principal.check(self._permission)
            except (NotAuthenticated, NotPermitted) as error:
                self._doorkeeper.refused(self._call, context.peer(), error)
                raise
        sharer = sharer_of(context)
        self._shares.take(sharer)
        return Entered(principal, sharer)

    def checked(self, entered: Entered, request: RequestT, context: Context) -> RequestT:
        """The request. Raises NotPermitted if it is about a broker group that the caller may not register."""
        principal = entered.principal
        if self._doorkeeper is None or principal is None or self._permission is not Permission.REGISTER:
            return request
        try:
            principal.check_groups(self._doorkeeper.groups(request))
        except NotPermitted as error:
            self._doorkeeper.refused(self._call, context.peer(), error)
            raise
        return request

    def leave(self, entered: Entered) -> None:
        """The call has ended."""
        self._shares.give_back(entered.sharer)

    def has_room(self) -> bool:
        """Whether there is a share for one more call, whoever makes it."""
        return self._shares.has_room_for_anyone()


def permission_of(method: MethodDescriptor) -> Permission:
    """What a call needs."""
    return _PERMISSIONS[method.containing_service.name]


def _shares_of(method: MethodDescriptor, shares: FairShares) -> Shares:
    """What a call takes a share of: each class has its own, so that none can starve the others."""
    if method.server_streaming:
        return shares.streams
    return {
        Permission.LOOKUP: shares.lookups,
        Permission.REGISTER: shares.registrations,
        Permission.ADMINISTER: shares.admin_calls,
    }[permission_of(method)]


# Broker groups that a call of RegistrationService is about.


class NamedGroups:
    """Finds the groups that a request names, and those that it would affect without naming them."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager

    def of(self, request: Any) -> Iterator[BrokerKey]:
        """The groups, as they are in the request: their names are not checked yet."""
        match request:
            case (
                pb.RegisterBrokerRequest()
                | pb.UnregisterBrokerRequest()
                | pb.QueryDataVersionRequest()
                | pb.BrokerHeartbeatRequest()
            ):
                yield from self._of_broker(request.broker)
            case pb.RegisterTopicRequest():
                for queues in request.queue_datas:
                    yield BrokerKey(queues.cluster_name, queues.broker_name)
            case pb.HandOverChannelRequest():
                for key in self._manager.channels.bound(request.channel_id):
                    yield from self._at(key)

    def _of_broker(self, broker: route_data_pb2.BrokerIdentity) -> Iterator[BrokerKey]:
        """The group that it names, and the one that has its address: taking it removes its broker, or keeps it out."""
        yield BrokerKey(broker.cluster_name, broker.broker_name)
        yield from self._at(LiveKey(broker.cluster_name, broker.broker_addr))

    def _at(self, key: LiveKey) -> Iterator[BrokerKey]:
        live = self._manager.tables.broker_live_table.get(key)
        if live is not None:
            yield live.broker
        elif claim := self._manager.address_claims.at(key):
            yield claim.broker
