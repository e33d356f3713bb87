"""The gate of RocketMQ's requests: what waits is refused once changed permits do not admit it."""

from __future__ import annotations

import asyncio

from namesrv.app.access import Authorizer
from namesrv.core.errors import Reason
from namesrv.remoting.caller import ANONYMOUS, Caller, Gate, Grade
from namesrv_common.server.permits import BrokerPattern, NamedBroker, Permits, Principal
from tests.support.refusals import refuses

BROKER = NamedBroker(("c", "a"))


def permits(*groups: str) -> Permits:
    """Permits that let connections without a certificate register these groups."""
    return Permits({ANONYMOUS: Principal("legacy", register=tuple(map(BrokerPattern.parse, groups)))})


def test_a_registration_that_waits_is_refused_once_permits_do_not_admit_it() -> None:
    in_force = [permits("c/a", "c/b")]
    authorizer = Authorizer(lambda: in_force[0], lambda _: ())
    gate, caller = Gate(Grade, authorizer), Caller("127.0.0.1:1", {}, lambda: None)

    async def register() -> None:
        with gate.while_allowed(caller, Grade.REGISTRATIONS, lambda: [BROKER]):
            for groups in (["c/a"], ["c/b"]):
                in_force[0] = permits(*groups)
                await authorizer.open_calls.check_again()
                await asyncio.sleep(0)
            raise AssertionError("it was admitted")

    with refuses(Reason.NOT_PERMITTED, match="legacy may not register c/a"):
        asyncio.run(register())
