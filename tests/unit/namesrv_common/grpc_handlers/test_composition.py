"""Services of parts: each call has exactly one that answers it, or the program does not start."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from grpc_health.v1 import health_pb2

from namesrv_common.server.rpc_handlers import Context, NotComposed, methods_of, part_of

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]
CHECK, WATCH = SERVICE.methods_by_name["Check"], SERVICE.methods_by_name["Watch"]


class Checks:
    async def Check(self, _request: Any, _context: Context) -> bytes:  # noqa: N802 - the contract's name
        return b"checked"


class Watches:
    async def Watch(self, _request: Any, _context: Context) -> Any:  # noqa: N802
        yield b"watched"


class Servicer(NamedTuple):
    checks: Checks
    watches: Watches


def test_each_call_is_answered_by_the_part_that_has_it() -> None:
    servicer = Servicer(Checks(), Watches())
    assert part_of(CHECK, servicer) is servicer.checks
    assert part_of(WATCH, servicer) is servicer.watches


def test_a_call_without_a_part_is_an_error_that_names_it() -> None:
    with pytest.raises(NotComposed, match=r"no part answers grpc\.health\.v1\.Health\.Watch: Checks"):
        part_of(WATCH, (Checks(),))


def test_a_call_of_two_parts_is_an_error_that_names_both() -> None:
    with pytest.raises(NotComposed, match=r"more than one part answers .*\.Check: Checks, Checks"):
        part_of(CHECK, (Checks(), Watches(), Checks()))


def test_the_calls_of_a_service_that_parts_answer_are_found_in_its_order() -> None:
    assert methods_of(SERVICE, [Watches]) == [WATCH]
    assert methods_of(SERVICE, [Watches, Checks]) == [CHECK, WATCH]
