"""The calls of AdminService about the addresses that groups claim while their brokers are down."""

from __future__ import annotations

import structlog
from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv import limits
from namesrv.app import field_rules
from namesrv.app.access import caller_of
from namesrv.core.address_claims import AddressClaim
from namesrv.core.changes import Cause
from namesrv.core.errors import InvalidField
from namesrv.core.model import LiveKey
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import Sliced, sorted_in_slices
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.paging import page_of

_SLICE = 1_000
"""Claims that are sorted or looked at before giving way."""

_log = structlog.get_logger(__name__)


class AddressClaimQueries:
    """Claims are listed by cluster and address."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager

    async def ListAddressClaims(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListAddressClaimsRequest, _context: Context
    ) -> pb.ListAddressClaimsResponse:
        """RocketMQ has nothing like it."""
        claims: dict[str, AddressClaim] = {}
        page = await page_of(request, lambda after, limit: self._names_after(claims, after, limit))
        return pb.ListAddressClaimsResponse(
            header=self._manager.header(),
            address_claims=[_message(claims[name]) for name in page.names],
            next_page_token=page.next_page_token,
        )

    def _names_after(self, claims: dict[str, AddressClaim], after: str, limit: int) -> Sliced[list[str]]:
        """The first names after one, sorted; puts their claims, among others, into a dictionary."""
        in_force = yield from self._manager.address_claims.in_force()
        for count, claim in enumerate(in_force, 1):
            name = _name(claim)
            if name > after:
                claims[name] = claim
            if count % _SLICE == 0:
                yield
        names = yield from sorted_in_slices(claims)
        return names[:limit]


class AddressClaimChanges:
    """An operator ends a claim."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager

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
            claim = self._manager.address_claims.at(key)
            return pb.ReleaseAddressClaimResponse(header=self._manager.header(), released=claim is not None)
        cause = Cause("ReleaseAddressClaim", caller_of(context), request.comment)
        claim = self._manager.release_address_claim(key, cause)
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
        return pb.ReleaseAddressClaimResponse(header=self._manager.header(), released=claim is not None)


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
