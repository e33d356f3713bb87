"""Access: which principal calls, which calls and brokers its permits allow, and how much it may hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv import limits
from namesrv.core.errors import Refused, limit_exceeded, overloaded
from namesrv.core.model import LiveKey
from namesrv.core.snapshot import MAX_PINNED_REVISIONS, MAX_PINS, too_many_pins
from namesrv.core.state import RouteState
from namesrv_common.server.permits import (
    NamedBroker,
    OpenCalls,
    Permission,
    Permits,
    Principal,
    log_of_refusals,
    principal_of,
)
from namesrv_common.server.rpc_handlers import NO_LIMIT, Context, Gate, RequestT
from namesrv_common.server.shares import Refusal, Sharer, ShareRules, Shares, sharer_at

# The caller of a call: the principal of its certificate or token, or the peer where there are no permits.

Need = Callable[[Principal], None]
"""A check of a principal. Raises NOT_PERMITTED."""


@dataclass(slots=True, eq=False)
class Entered:
    """An admitted call: its caller, and the permissions that the caller must keep while the call is open."""

    principal: Principal | None
    """As the permits have it now. None without permits."""
    sharer: Sharer
    needs: list[Need] = field(default_factory=list)
    """Checks that the call passed, beyond the permission that its service needs."""


_entered: ContextVar[Entered | None] = ContextVar("entered", default=None)
"""The call that is being answered. Each call has a task, or at least a context, of its own. None without permits."""


def caller_of(context: Context) -> str:
    """The name of this call's caller in the journal."""
    return principal_name() or context.peer()


def sharer_of(context: Context) -> Sharer:
    """Returns the sharer of this call: its caller by name or, without permits, the address."""
    entered = _entered.get()
    return sharer_at(context.peer()) if entered is None else entered.sharer


def principal_name() -> str:
    """Returns the name of this call's principal, or an empty string without permits."""
    entered = _entered.get()
    return "" if entered is None or entered.principal is None else entered.principal.name


def need(check: Need) -> None:
    """Checks the caller of this call, now and whenever permits change while the call is open. Raises NOT_PERMITTED."""
    entered = _entered.get()
    if entered is not None and entered.principal is not None:
        check(entered.principal)
        entered.needs.append(check)


def call_of(principal: Principal) -> Entered:
    """Begins the call of a principal, whom ``caller_of``, ``sharer_of`` and ``principal_name`` return from now on."""
    entered = Entered(principal, Sharer(principal.name, principal.administer))
    _entered.set(entered)
    return entered


# Quotas: how much of each limited resource one caller may hold.


def _too_much(what: str, value: int, limit: int, caller: str) -> Refused:
    """The error where a retry helps, because the resource will be released soon."""
    return overloaded(f"{what}: {value} is over the limit of {limit} for {caller}")


class FairShares:
    """The shares of each kind; one for a whole server."""

    def __init__(self, rules: ShareRules | None = None, **most: int) -> None:
        """Makes them with rules for one caller; ``most`` has other bounds than those of ``limits``, by kind."""

        def of(kind: str, what: str, usual: int, own: Refusal = _too_much, full: Refusal = _too_much) -> Shares:
            return Shares(what, most.get(kind, usual), rules, own=own, full=full)

        self.lookups = of("lookups", "lookups under way", limits.MAX_LOOKUPS_UNDER_WAY)
        """Unary calls of RouteService and DiagnosticsService under way."""
        self.registrations = of("registrations", "registrations under way", limits.MAX_REGISTRATIONS_UNDER_WAY)
        """Unary calls of RegistrationService under way."""
        self.admin_calls = of("admin_calls", "calls of AdminService under way", limits.MAX_ADMIN_CALLS_UNDER_WAY)
        self.streams = of("streams", "streams under way", limits.MAX_STREAMS_UNDER_WAY)
        """Streams of any service."""
        self.probes = of("probes", "open calls of health", limits.MAX_PROBES_UNDER_WAY)
        self.reflections = of("reflections", "open calls of reflection", limits.MAX_REFLECTIONS_UNDER_WAY)
        self.request_bytes = of("request_bytes", "bytes of requests under way", limits.MAX_REQUEST_BYTES_UNDER_WAY)
        """Bytes of large requests from parsing to answer."""
        self.registered_topics = of(
            "registered_topics", "topics of registrations under way", limits.MAX_TOPICS_UNDER_WAY
        )
        """Topics of registrations from before they are read to the answer."""
        self.channels = of("channels", "open channels", limits.MAX_CHANNELS, limit_exceeded, limit_exceeded)
        self.watches = of("watches", "open watches", limits.MAX_WATCHERS, limit_exceeded)
        """Open watches and followed snapshots."""
        self.watched_names = of(
            "watched_names", "topics and prefixes watched", limits.MAX_WATCHED_NAMES, limit_exceeded, limit_exceeded
        )
        self.snapshot_streams = of("snapshot_streams", "snapshot streams", limits.MAX_SNAPSHOT_STREAMS, limit_exceeded)
        """Snapshots, or changes up to a revision, on their way."""
        self.pins = of("pins", "pins", MAX_PINS, too_many_pins, too_many_pins)
        self.pinned_revisions = of(
            "pinned_revisions", "pinned revisions", MAX_PINNED_REVISIONS, too_many_pins, too_many_pins
        )

    def by_kind(self) -> Mapping[str, Shares]:
        return vars(self)


# The admission of every call before it is parsed: caller, permission, and a free share.

_PERMISSIONS = {
    "RouteService": Permission.LOOKUP,
    "RegistrationService": Permission.REGISTER,
    "AdminService": Permission.ADMINISTER,
    "DiagnosticsService": Permission.LOOKUP,
}


@dataclass
class Authorizer:
    """Knows the permits in force and which brokers a request is about; logs refused calls."""

    permits: Callable[[], Permits]
    brokers: Callable[[Any], Iterable[NamedBroker]]
    refused: Callable[[str, str, Refused], None] = field(default_factory=lambda: log_of_refusals(time.monotonic))
    """Logs a refused call of a peer."""
    open_calls: OpenCalls = field(default_factory=OpenCalls)
    """Calls that end when their callers lose the right to them."""


class Admission(Gate):
    """The gate that every call of one method of the contract passes."""

    def __init__(self, method: MethodDescriptor, shares: FairShares, authorizer: Authorizer | None) -> None:
        """Makes it; without an authorizer everybody may call."""
        self._call = method.full_name
        self._permission = _PERMISSIONS[method.containing_service.name]
        # Each class of calls has shares of its own, so that none can starve the others.
        by_permission = {
            Permission.LOOKUP: shares.lookups,
            Permission.REGISTER: shares.registrations,
            Permission.ADMINISTER: shares.admin_calls,
        }
        self._shares = shares.streams if method.server_streaming else by_permission[self._permission]
        self._request_bytes = shares.request_bytes
        self._authorizer = authorizer

    def enter(self, context: Context) -> Entered:
        """A call begins; ``leave`` must follow unless this raises.

        Raises:
            NOT_AUTHENTICATED: The caller is unknown.
            NOT_PERMITTED: The caller may make no call of this service.
            OVERLOADED: All calls of its class are taken, or its caller has no share of them left.
        """
        if self._authorizer is None:
            entered = Entered(None, sharer_of(context))
        else:
            entered = call_of(self._permitted(self._authorizer, context))
        self._shares.take(entered.sharer)
        return entered

    def _permitted(self, authorizer: Authorizer, context: Context, needs: Iterable[Need] = ()) -> Principal:
        """Returns the caller as the permits have it now. Logs a refusal."""
        try:
            principal = principal_of(context, authorizer.permits())
            principal.check(self._permission)
            for check in needs:
                check(principal)
        except Refused as error:
            authorizer.refused(self._call, context.peer(), error)
            raise
        return principal

    def checked(self, entered: Entered, request: RequestT, context: Context) -> RequestT:
        """The request. Raises NOT_PERMITTED if it is about a broker that the caller may not register."""
        principal = entered.principal
        if self._authorizer is None or principal is None or self._permission is not Permission.REGISTER:
            return request
        brokers = []
        try:
            for broker in self._authorizer.brokers(request):
                principal.check_brokers((broker,))
                brokers.append(broker)
        except Refused as error:
            self._authorizer.refused(self._call, context.peer(), error)
            raise
        entered.needs.append(partial(Principal.check_brokers, brokers=brokers))
        return request

    def while_allowed(self, entered: Entered, context: Context) -> AbstractContextManager[None]:
        """A context that ends with NOT_AUTHENTICATED or NOT_PERMITTED once changed permits do not admit the call."""
        if self._authorizer is None:
            return NO_LIMIT
        return self._authorizer.open_calls.while_allowed(partial(self._check_again, self._authorizer, entered, context))

    def _check_again(self, authorizer: Authorizer, entered: Entered, context: Context) -> None:
        entered.principal = self._permitted(authorizer, context, entered.needs)

    def take(self, entered: Entered, size: int) -> int:
        """Takes memory until the request is answered: a flood of maximal requests is refused and not held.

        Raises:
            OVERLOADED: Too little memory is left, in all or for the caller.
        """
        if size <= limits.SMALL_REQUEST_BYTES:
            return 0
        self._request_bytes.take(entered.sharer, size)
        return size

    def give_back(self, entered: Entered, taken: int) -> None:
        self._request_bytes.give_back(entered.sharer, taken)

    def leave(self, entered: Entered) -> None:
        self._shares.give_back(entered.sharer)

    def has_room(self) -> bool:
        """Reports whether any caller has a share for one more call."""
        return self._shares.has_room_for_anyone()


# Brokers that a call of RegistrationService is about.


class NamedBrokers:
    """Finds the brokers that a request names, and those that it would affect without naming them."""

    def __init__(self, state: RouteState) -> None:
        self._state = state

    def of(self, request: Any) -> Iterator[NamedBroker]:
        """The brokers, as they are in the request: names and addresses are not checked yet."""
        match request:
            case (
                pb.RegisterBrokerRequest()
                | pb.UnregisterBrokerRequest()
                | pb.QueryDataVersionRequest()
                | pb.BrokerHeartbeatRequest()
            ):
                broker = request.broker
                yield from self.at_address(broker.cluster_name, broker.broker_name, broker.broker_addr)
            case pb.RegisterTopicRequest():
                # One more than are allowed: the call refuses the others, and a request may have millions.
                for queues in islice(request.queue_datas, limits.MAX_QUEUE_DATAS_PER_TOPIC + 1):
                    yield NamedBroker((queues.cluster_name, queues.broker_name))
            case pb.HandOverChannelRequest():
                yield from self.of_channel(request.channel_id)
            case _:
                pass  # it names no broker

    def of_channel(self, channel_id: str) -> Iterator[NamedBroker]:
        """The brokers that are registered over a channel."""
        for key in self._state.liveness.bound(channel_id):
            yield from self._at(key)

    def at_address(self, cluster_name: str, broker_name: str, broker_addr: str) -> Iterator[NamedBroker]:
        """Yields a broker and the confirmed one at its address, which a registration would remove."""
        yield NamedBroker((cluster_name, broker_name), broker_addr)
        yield from self._at(LiveKey(cluster_name, broker_addr))

    def _at(self, key: LiveKey) -> Iterator[NamedBroker]:
        live = self._state.tables.broker_live_table.get(key)
        if live is not None and self._state.is_confirmed(live):
            yield NamedBroker(live.broker, live.broker_addr)
