from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from namesrv_common.errors import CommonReason
from namesrv_common.server.share_gate import ShareGate
from namesrv_common.server.shares import Shares
from tests.support.refusals import refuses


@dataclass
class Caller:
    """The context of a call, as far as the gate looks at it."""

    address: str

    def peer(self) -> str:
        return self.address


def test_one_address_has_its_share_of_the_open_calls_until_they_end() -> None:
    gate = ShareGate(Shares("open calls", 10))
    one: Any = Caller("ipv4:10.0.0.1:4711")
    other: Any = Caller("ipv4:10.0.0.2:4711")
    entered = [gate.enter(one) for _ in range(5)]
    with refuses(CommonReason.LIMIT_EXCEEDED, match=r"open calls: 6 is over the limit of 5 for 10\.0\.0\.1"):
        gate.enter(one)
    gate.enter(other)
    gate.leave(entered[0])
    gate.enter(one)
