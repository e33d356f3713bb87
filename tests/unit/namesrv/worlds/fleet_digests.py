"""A fleet, and digests of what its brokers report."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.changes import Cause
from namesrv.core.digests import FRONT, DigestedBroker
from namesrv.core.model import BrokerKey, DataVersion, Intent, IntentKey, IntentKind, QueueNumbers
from namesrv.core.operator_changes import IntentsChange
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import CLUSTER, Fleet
from tests.support.state_changes import apply_now
from tests.unit.namesrv.servicers import table_calls

CAUSE = Cause("test", "an operator", "because")


GROUP = BrokerKey(CLUSTER, "broker-a")


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

    def decide(self, kind: IntentKind, key: IntentKey) -> None:
        state = self.fleet.state
        intent = Intent(kind, key, "an operator", self.fleet.clock.wall_millis())
        apply_now(IntentsChange(self.fleet.state, state.intents.with_intent(intent), CAUSE))

    def lift(self, key: IntentKey) -> None:
        state = self.fleet.state
        apply_now(IntentsChange(self.fleet.state, state.intents.without([key]), CAUSE))


@pytest.fixture
def made() -> Digests:
    return Digests()


def version(counter: int) -> DataVersion:
    return DataVersion(1_000, counter)


def expected(rows: Mapping[str, QueueNumbers]) -> bytes:
    """The digest as the wire contract defines it, written as plainly as possible."""
    lines = [f"{name} {' '.join(map(str, rows[name]))}\n" for name in sorted(rows, key=str.encode)]
    return hashlib.sha256("".join(lines).encode()).digest()
