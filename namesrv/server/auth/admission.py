"""The admission of every call before it is parsed: caller, permission, and room for one more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import MethodDescriptor

from groundwork.auth.permits import Permission, Permits, Principal
from groundwork.auth.refusals import RefusalLog
from groundwork.shares import Sharer, Shares
from namesrv.core.errors import NotAuthenticated, NotPermitted
from namesrv.core.model import BrokerKey
from namesrv.server.auth.callers import Context, identify, sharer_of
from namesrv.server.auth.fair_shares import FairShares

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
