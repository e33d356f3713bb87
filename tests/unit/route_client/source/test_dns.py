"""Names that stand for several name servers."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable

import pytest

from namesrv_common.endpoints import Endpoint
from route_client.endpoints import DnsRefresh, EndpointChooser, EndpointList


def chooser_after(resolve: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> set[Endpoint]:
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    listed = EndpointList.parse("a:9876;dns:many:9876")
    chooser = EndpointChooser(listed.unresolved, random.Random(0), lambda: 0.0)

    async def refresh() -> None:
        await DnsRefresh(listed, chooser, timeout_seconds=20).refresh()

    asyncio.run(refresh())
    return set(chooser.in_order())


def test_a_name_is_replaced_by_its_addresses_of_ipv4_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, *_: object) -> list[tuple[object, ...]]:
        assert (host, port) == ("many", 9876)
        found = [("10.0.0.1", 9876), ("10.0.0.2", 9876), ("10.0.0.1", 9876)]
        both = [(socket.AF_INET, address) for address in found] + [(socket.AF_INET6, ("::1", 9876, 0, 0))]
        return [(family, socket.SOCK_STREAM, 6, "", address) for family, address in both]

    hosts = ("a", "10.0.0.1", "10.0.0.2")
    assert chooser_after(resolve, monkeypatch) == {Endpoint(host, 9876) for host in hosts}


def test_a_name_that_cannot_be_resolved_leaves_the_list_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object) -> list[tuple[object, ...]]:
        raise socket.gaierror("no such name")

    assert chooser_after(resolve, monkeypatch) == {Endpoint("a", 9876), Endpoint("many", 9876)}
