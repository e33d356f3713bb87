"""An HTTP listener's connections: bounded in all and by address, each with a deadline."""

from __future__ import annotations

import asyncio

from namesrv_common.server.http_connections import HttpConnections
from tests.support.virtual_clock import VirtualClock

SECONDS = 5.0


class Transport(asyncio.Transport):
    """A connection without a network."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1)})
        self.is_cut = False

    def abort(self) -> None:
        self.is_cut = True

    def is_closing(self) -> bool:
        return self.is_cut


def renewed(connections: HttpConnections, address: str, count: int) -> list[Transport]:
    """New connections of an address, all of them counted."""
    made = [Transport(address) for _ in range(count)]
    for transport in made:
        connections.renew(transport)
    return made


def cut(transports: list[Transport]) -> list[bool]:
    return [transport.is_cut for transport in transports]


async def test_an_address_beyond_its_bound_loses_the_connection_silent_for_longest() -> None:
    connections = HttpConnections(most=9, most_by_address=3, seconds=SECONDS)
    held, other = renewed(connections, "10.0.0.1", 3), renewed(connections, "10.0.0.2", 1)
    connections.renew(held[0])
    renewed(connections, "10.0.0.1", 1)
    assert cut(held) == [False, True, False]
    assert cut(other) == [False]
    assert len(connections) == 4


async def test_beyond_the_bound_of_all_the_address_with_most_loses_a_connection() -> None:
    connections = HttpConnections(most=6, most_by_address=9, seconds=SECONDS)
    few, most, some = (renewed(connections, f"10.0.0.{number}", number) for number in (1, 3, 2))
    renewed(connections, "10.0.0.9", 1)
    assert [cut(few), cut(most), cut(some)] == [[False], [True, False, False], [False, False]]
    assert len(connections) == 6


async def test_a_connection_is_cut_after_its_time_unless_it_is_renewed_or_removed() -> None:
    clock = VirtualClock()
    asyncio.get_running_loop().time = clock  # type: ignore[method-assign]
    connections = HttpConnections(most=6, most_by_address=6, seconds=SECONDS)
    silent, active, lasting = renewed(connections, "10.0.0.1", 3)
    clock.advance(SECONDS / 2)
    connections.renew(active)
    connections.remove(lasting)
    clock.advance(SECONDS / 2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert cut([silent, active, lasting]) == [True, False, False]


async def test_a_connection_that_has_ended_is_not_counted_again() -> None:
    connections = HttpConnections(most=6, most_by_address=6, seconds=SECONDS)
    [ended] = renewed(connections, "10.0.0.1", 1)
    connections.cut_all()
    connections.renew(ended)
    assert ended.is_cut
    assert not len(connections)
