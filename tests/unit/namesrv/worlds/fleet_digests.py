"""A fleet, and digests of what its brokers report."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.lists import FRONT, DigestedBroker
from namesrv.core.model import BrokerKey, QueueNumbers
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import Fleet
from tests.unit.namesrv.scenarios.groups import GROUP
from tests.unit.namesrv.servicers import table_calls

ALL = 1_000


class Digests:
    """A fleet, and digests of it that are kept from its beginning."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.digests = self.fleet.state.digests
        self.calls = table_calls(self.fleet)

    def all(self) -> list[DigestedBroker]:
        """The brokers with their digests, made where nothing changes in the meantime."""
        self.digests.compute(self.digests.missing(FRONT, ALL))
        page = self.digests.page(FRONT, ALL)
        assert page is not None, "a digest is missing"
        return page

    def of_groups(self) -> dict[BrokerKey, bytes]:
        return {live.broker: digest for live, digest in self.all()}

    def of_group(self, broker: BrokerKey = GROUP) -> bytes:
        return self.of_groups()[broker]

    def page(self, size: int = 0, token: str = "") -> pb.GetRouteDigestResponse:
        request = pb.GetRouteDigestRequest(page_size=size, page_token=token)
        return asyncio.run(self.calls.GetRouteDigest(request, CONTEXT))


@pytest.fixture
def made() -> Digests:
    return Digests()


def expected(rows: Mapping[str, QueueNumbers]) -> bytes:
    """The digest as the wire contract defines it, written as plainly as possible."""
    lines = [f"{name} {' '.join(map(str, rows[name]))}\n" for name in sorted(rows, key=str.encode)]
    return hashlib.sha256("".join(lines).encode()).digest()
