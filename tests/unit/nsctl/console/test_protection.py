"""Which requests are taken."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from nsctl.console.protection import ACTION_HEADER, check_requests

OURS = {"Host": "localhost:9880", "Content-Type": "application/json", ACTION_HEADER: "1"}


def status(method: str, headers: dict[str, str], host_names: tuple[str, ...] = ("console.internal",)) -> int:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response()

    async def ask() -> int:
        return (await check_requests(host_names)(make_mocked_request(method, "/", headers), handler)).status

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9880", "127.0.0.1:9880", "[::1]:9880", "10.1.2.3", "Console.Internal:80", "localhost."],
)
def test_a_name_that_is_ours_and_any_address_is_taken(host: str) -> None:
    assert status("GET", {"Host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example:9880", "127.0.0.1.evil.example", "", "[::1"),
        *("[::1].evil.example", "[::1].evil.example:9880", "[::1]:", "[::1]:x", "[localhost].evil.example"),
    ],
)
def test_another_name_that_points_here_is_not(host: str) -> None:
    assert status("GET", {"Host": host}) == 421


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 200),
        ({"Origin": "http://localhost:9880", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "https://localhost:9880"}, 200),
        ({ACTION_HEADER: "0"}, 403),
        ({"Origin": "http://localhost:9881"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_a_change_is_taken_from_our_page_alone(changed: dict[str, str], expected: int) -> None:
    assert status("POST", {**OURS, **changed}) == expected
