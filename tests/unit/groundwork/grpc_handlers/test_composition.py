"""Services of parts: each call has exactly one that answers it, or the program does not start."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, cast

import pytest
from grpc_health.v1 import health_pb2

from groundwork.rpc_handlers import Composition, Context, NotComposed, methods_of, part_classes

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]
CHECK, WATCH = SERVICE.methods_by_name["Check"], SERVICE.methods_by_name["Watch"]
CONTEXT = cast("Context", None)
"""Nobody here asks it anything."""


class Checks:
    inline_calls = ("Check",)

    async def Check(self, _request: Any, _context: Context) -> bytes:  # noqa: N802 - the contract's name
        return b"checked"


class Watches:
    async def Watch(self, _request: Any, _context: Context) -> Any:  # noqa: N802
        yield b"watched"


class Lists:
    inline_calls = ("List",)

    async def List(self, _request: Any, _context: Context) -> bytes:  # noqa: N802
        return b"listed"


class Servicer(NamedTuple):
    checks: Checks
    watches: Watches


def composed(*parts: object) -> Composition:
    return Composition.of((CHECK, WATCH), parts)


def test_each_call_is_answered_by_the_part_that_has_it() -> None:
    behaviours = composed(*Servicer(Checks(), Watches())).behaviours
    assert list(behaviours) == ["Check", "Watch"]
    assert asyncio.run(behaviours["Check"](None, CONTEXT)) == b"checked"


def test_a_call_without_a_part_is_an_error_that_names_it() -> None:
    with pytest.raises(NotComposed, match=r"no part answers grpc\.health\.v1\.Health\.Watch: Checks"):
        composed(Checks())


def test_a_call_of_two_parts_is_an_error_that_names_both() -> None:
    with pytest.raises(NotComposed, match=r"more than one part answers .*\.Check: Checks, Checks"):
        composed(Checks(), Watches(), Checks())


def test_inline_calls_of_all_parts_count_and_none_overwrites_those_of_another() -> None:
    parts = Checks(), Lists(), Watches()
    assert composed(*parts).inline_calls == {"Check"}
    assert composed(*reversed(parts)).inline_calls == {"Check"}


def test_an_inline_call_that_its_part_does_not_have_is_an_error() -> None:
    watches = Watches()
    watches.inline_calls = ("Check",)  # type: ignore[attr-defined]
    with pytest.raises(NotComposed, match="Watches has no call Check"):
        composed(Checks(), watches)


def test_a_stream_that_is_said_to_be_inline_is_an_error() -> None:
    watches = Watches()
    watches.inline_calls = ("Watch",)  # type: ignore[attr-defined]
    with pytest.raises(NotComposed, match="Watch is a stream"):
        composed(Checks(), watches)


def test_a_servicer_tells_its_parts_and_they_their_calls() -> None:
    assert part_classes(Servicer) == (Checks, Watches)
    assert methods_of(SERVICE, [Watches]) == [WATCH]
    assert methods_of(SERVICE, part_classes(Servicer)) == [CHECK, WATCH]
