"""The admission of every call before it is parsed: caller, permission, and room for one more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.descriptor import MethodDescriptor

from groundwork.auth.permits import Permission, Permits, Principal
from groundwork.auth.refusals import RefusalLog
from namesrv.config import limits
from namesrv.core.errors import NotAuthenticated, NotPermitted, Overloaded
from namesrv.core.records.rows import BrokerKey
from namesrv.server.auth.callers import Context, identify

_PERMISSIONS = {
    "RouteService": Permission.LOOKUP,
    "RegistrationService": Permission.REGISTER,
    "AdminService": Permission.ADMINISTER,
}

RequestT = TypeVar("RequestT")


class CallBound:
    """How many calls of one class may be under way at once."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._under_way = 0

    def enter(self) -> None:
        """A call begins. Raises Overloaded if there is no room."""
        if self._under_way >= self._most:
            raise Overloaded(f"{self._under_way} {self._what} are under way, at most {self._most}")
        self._under_way += 1

    def leave(self) -> None:
        """A call that was let in has ended."""
        self._under_way -= 1


class CallBounds:
    """A bound for each class of calls, so that none can starve the others."""

    def __init__(
        self,
        lookups: int = limits.MAX_LOOKUPS_UNDER_WAY,
        registrations: int = limits.MAX_REGISTRATIONS_UNDER_WAY,
        admin_calls: int = limits.MAX_ADMIN_CALLS_UNDER_WAY,
        streams: int = limits.MAX_STREAMS_UNDER_WAY,
    ) -> None:
        self._streams = CallBound("streams", streams)
        self._unary = {
            Permission.LOOKUP: CallBound("lookups", lookups),
            Permission.REGISTER: CallBound("registrations", registrations),
            Permission.ADMINISTER: CallBound("calls of AdminService", admin_calls),
        }

    def of(self, method: MethodDescriptor) -> CallBound:
        """The bound that a call counts for."""
        return self._streams if method.server_streaming else self._unary[permission_of(method)]


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


class Admission:
    """The gate that every call of one method of the contract passes."""

    def __init__(self, method: MethodDescriptor, bounds: CallBounds, doorkeeper: Authorizer | None) -> None:
        """Makes it; without a doorkeeper everybody may call."""
        self._call = method.full_name
        self._permission = permission_of(method)
        self._bound = bounds.of(method)
        self._doorkeeper = doorkeeper

    def enter(self, context: Context) -> Principal | None:
        """A call begins; ``leave`` must follow unless this raises. None: there are no permits.

        Raises:
            NotAuthenticated: It is not known who calls.
            NotPermitted: The caller may make no call of this service.
            Overloaded: There is no room for another one of its class.
        """
        principal = None
        if self._doorkeeper is not None:
            try:
                principal = identify(context, self._doorkeeper.permits())
                principal.check(self._permission)
            except (NotAuthenticated, NotPermitted) as error:
                self._doorkeeper.refused(self._call, context.peer(), error)
                raise
        self._bound.enter()
        return principal

    def checked(self, principal: Principal | None, request: RequestT, context: Context) -> RequestT:
        """The request. Raises NotPermitted if it is about a broker group that the caller may not register."""
        if self._doorkeeper is None or principal is None or self._permission is not Permission.REGISTER:
            return request
        try:
            principal.check_groups(self._doorkeeper.groups(request))
        except NotPermitted as error:
            self._doorkeeper.refused(self._call, context.peer(), error)
            raise
        return request

    def leave(self) -> None:
        """The call has ended."""
        self._bound.leave()


def permission_of(method: MethodDescriptor) -> Permission:
    """What a call needs."""
    return _PERMISSIONS[method.containing_service.name]
