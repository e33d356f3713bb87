"""The call of RouteService that tells digests of what each broker reports, in pages."""

from __future__ import annotations

import re

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.config import limits
from namesrv.core.digests import FRONT, DigestedBroker, Position, RouteDigests
from namesrv.core.errors import InvalidField
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import Sliced
from namesrv.server.background.table_writer import run_cooperatively
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import field_rules
from namesrv.server.services.paging import last_of_page_before, page_token

SLICE = 200
"""Brokers that are made messages before giving way: about a millisecond."""

_ID = re.compile(r"[0-9]{1,19}")
"""A broker id in a page token."""


class DigestCalls:
    """Digests are made in the core in steps, and so are the messages here."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager
        self._digests = RouteDigests(manager.tables, manager.change_log)

    async def GetRouteDigest(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.GetRouteDigestRequest, _context: Context
    ) -> pb.GetRouteDigestResponse:
        """What each broker reports, as 32 bytes; RocketMQ has nothing like it."""
        size = min(field_rules.page_size(request.page_size), limits.MAX_DIGEST_PAGE_SIZE)
        after = _position_of_token(request.page_token)
        # One more than fits tells whether there is a next page.
        found = await run_cooperatively(self._digests.after(after, size + 1))
        return pb.GetRouteDigestResponse(
            header=self._manager.header(),
            brokers=await run_cooperatively(_messages(found[:size])),
            next_page_token=_token_of(found[size - 1]) if len(found) > size else "",
        )


def _messages(brokers: list[DigestedBroker]) -> Sliced[list[pb.BrokerDigest]]:
    messages = []
    for count, (live, digest) in enumerate(brokers, 1):
        version = live.data_version
        messages.append(
            pb.BrokerDigest(
                cluster_name=live.broker.cluster_name,
                broker_name=live.broker.broker_name,
                broker_id=live.broker_id,
                broker_addr=live.broker_addr,
                data_version=route_data_pb2.DataVersion(
                    timestamp_millis=version.timestamp_millis,
                    counter=version.counter,
                    state_version=version.state_version,
                ),
                digest=digest,
            )
        )
        if count % SLICE == 0:
            yield
    return messages


def _token_of(broker: DigestedBroker) -> str:
    return page_token("\n".join(map(str, broker.position)))


def _position_of_token(token: str) -> Position:
    """Where to go on; the front for the first page. Raises InvalidField."""
    if not token:
        return FRONT
    cluster_name, _, rest = last_of_page_before(token).partition("\n")
    broker_name, _, broker_id = rest.partition("\n")
    if not (cluster_name and broker_name and _ID.fullmatch(broker_id)):
        raise InvalidField("page_token", "is not a next_page_token of this call")
    return Position(cluster_name, broker_name, int(broker_id))
