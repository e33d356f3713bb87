"""The calls of AdminService about the addresses that groups claim while their brokers are down."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import partial

import structlog
from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv import limits
from namesrv.app import field_rules
from namesrv.app.access import caller_of
from namesrv.app.worker import Worker
from namesrv.core.address_claims import AddressClaim
from namesrv.core.changes import Cause
from namesrv.core.errors import InvalidField
from namesrv.core.model import LiveKey
from namesrv.core.routes import Routes
from namesrv.core.slices import sorted_in_slices, with_breaths
from namesrv.core.state import RouteState
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.paging import page_of

_log = structlog.get_logger(__name__)


class AddressClaimQueries:
    """Claims are listed by cluster and address."""

    def __init__(self, state: RouteState, reader: Worker) -> None:
        self._state = state
        self._reader = reader

    async def ListAddressClaims(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListAddressClaimsRequest, _context: Context
    ) -> pb.ListAddressClaimsResponse:
        """RocketMQ has nothing like it."""
        claims = {_name(claim): claim for claim in self._state.address_claims.in_force()}
        page = await page_of(request, partial(_names_after, claims), self._reader)
        return pb.ListAddressClaimsResponse(
            header=self._state.header(),
            address_claims=[_message(claims[name]) for name in page.names],
            next_page_token=page.next_page_token,
        )


def _names_after(claims: Mapping[str, AddressClaim], after: str, limit: int) -> list[str]:
    names = with_breaths(sorted_in_slices(claims))
    first = bisect_right(names, after)
    return names[first : first + limit]


class AddressClaimChanges:
    """An operator ends a claim."""

    def __init__(self, routes: Routes) -> None:
        self._routes, self._state = routes, routes.state

    async def ReleaseAddressClaim(  # noqa: N802
        self, request: pb.ReleaseAddressClaimRequest, context: Context
    ) -> pb.ReleaseAddressClaimResponse:
        """RocketMQ has nothing like it."""
        field_rules.check_name("cluster_name", request.cluster_name)
        field_rules.check_address("broker_addr", request.broker_addr)
        if len(request.comment) > limits.MAX_COMMENT_LENGTH:
            raise InvalidField("comment", f"has {len(request.comment)} characters, at most {limits.MAX_COMMENT_LENGTH}")
        key = LiveKey(request.cluster_name, request.broker_addr)
        if request.validate_only:
            claim = self._state.address_claims.at(key)
            return pb.ReleaseAddressClaimResponse(header=self._state.header(), released=claim is not None)
        cause = Cause("ReleaseAddressClaim", caller_of(context), request.comment)
        claim = self._routes.operator_changes.release_address_claim(key, cause)
        if claim is not None:
            _log.info(
                "address_claim_released",
                cluster=key.cluster_name,
                addr=key.broker_addr,
                broker=claim.broker.broker_name,
                id=claim.broker_id,
                caller=cause.caller,
                comment=cause.comment,
            )
        return pb.ReleaseAddressClaimResponse(header=self._state.header(), released=claim is not None)


def _name(claim: AddressClaim) -> str:
    return "\n".join(claim.key)


def _message(claim: AddressClaim) -> pb.AddressClaim:
    return pb.AddressClaim(
        cluster_name=claim.key.cluster_name,
        broker_addr=claim.key.broker_addr,
        broker_name=claim.broker.broker_name,
        broker_id=claim.broker_id,
        since_millis=claim.since_millis,
        ends_at_millis=claim.ends_at_millis,
    )
