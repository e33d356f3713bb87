"""Bounds of open calls and of HTTP connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from namesrv_common.errors import CommonReason, Refused, not_permitted
from namesrv_common.server.metrics_http import Connections
from namesrv_common.server.open_calls import CHECK_SLICE, OpenCalls
from tests.support.refusals import refuses

REFUSAL = not_permitted("shop", "look up")


def refused() -> None:
    raise REFUSAL


async def waiting(calls: OpenCalls, check: Callable[[], None]) -> None:
    """A call that waits forever."""
    with calls.while_allowed(check):
        await asyncio.Event().wait()


async def begun(*tasks: asyncio.Task[None]) -> None:
    """Waits until each task has done its first step."""
    await asyncio.wait(tasks, timeout=0)


async def test_a_call_whose_caller_has_gone_too_is_cancelled() -> None:
    calls = OpenCalls()
    call = asyncio.create_task(waiting(calls, refused))
    await begun(call)
    await calls.check_again()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_call_that_swallows_its_end_is_refused_all_the_same() -> None:
    calls = OpenCalls()

    async def stubborn() -> None:
        with calls.while_allowed(refused), contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    call = asyncio.create_task(stubborn())
    await begun(call)
    await calls.check_again()
    with refuses(CommonReason.NOT_PERMITTED):
        await call
    assert call.cancelling() == 0, "nobody but us cancelled it, and what answers it may still wait"


async def test_a_call_that_has_ended_is_not_checked() -> None:
    calls = OpenCalls()

    def fails() -> None:
        raise AssertionError("it has ended")

    with calls.while_allowed(fails):
        pass
    await calls.check_again()


class Connection:
    """Something open that is no task."""

    def __init__(self) -> None:
        self.ended_with: list[Refused] = []

    def check(self) -> None:
        raise REFUSAL

    def end(self, refusal: Refused) -> None:
        self.ended_with.append(refusal)


async def test_each_call_is_ended_once_and_others_run_between_slices_of_many_calls() -> None:
    calls, connections = OpenCalls(), [Connection() for _ in range(3 * CHECK_SLICE)]
    for connection in connections:
        calls.add(connection)
    checking = asyncio.create_task(calls.check_again())
    seen = []
    while not checking.done():
        await asyncio.sleep(0)
        seen.append(sum(len(connection.ended_with) for connection in connections))
    assert set(seen) == {CHECK_SLICE, 2 * CHECK_SLICE, 3 * CHECK_SLICE}
    await calls.check_again()
    assert all(connection.ended_with == [REFUSAL] for connection in connections)


async def test_a_call_that_ends_while_others_are_checked_is_passed_over() -> None:
    calls = OpenCalls()
    first = [Connection() for _ in range(CHECK_SLICE)]
    last = Connection()
    for connection in (*first, last):
        calls.add(connection)
    checking = asyncio.create_task(calls.check_again())
    await asyncio.sleep(0)
    calls.remove(last)
    await checking
    assert not last.ended_with


class Transport(asyncio.Transport):
    """A connection without a network."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1)})
        self.is_cut = False

    def abort(self) -> None:
        self.is_cut = True

    def is_closing(self) -> bool:
        return self.is_cut


def heard(connections: Connections, address: str, count: int) -> list[Transport]:
    """New connections of an address, all of them counted."""
    made = [Transport(address) for _ in range(count)]
    for transport in made:
        connections.heard(transport)
    return made


def cut(transports: list[Transport]) -> list[bool]:
    return [transport.is_cut for transport in transports]


def test_an_address_beyond_its_bound_loses_the_connection_silent_for_longest() -> None:
    connections = Connections(9, 3)
    held, other = heard(connections, "10.0.0.1", 3), heard(connections, "10.0.0.2", 1)
    connections.heard(held[0])
    heard(connections, "10.0.0.1", 1)
    assert cut([*held, *other]) == [False, True, False, False]
    connections.heard(held[1])  # what was cut does not come back
    assert cut([*held, *other]) == [False, True, False, False]


def test_beyond_the_bound_of_all_the_address_with_most_loses_a_connection() -> None:
    connections = Connections(6, 9)
    few, most, some = (heard(connections, f"10.0.0.{number}", number) for number in (1, 3, 2))
    heard(connections, "10.0.0.9", 1)
    assert [cut(few), cut(most), cut(some)] == [[False], [True, False, False], [False, False]]
    connections.cut_all()
    assert all(cut([*few, *most, *some]))
