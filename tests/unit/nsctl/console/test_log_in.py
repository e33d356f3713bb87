"""Who is let in: with a token, with a cookie for it, for how long."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request

from groundwork.certificates import CertificateError
from nsctl.console.log_in import COOKIE, MIN_TOKEN_LENGTH, SESSION_SECONDS, LogIn
from tests.support.virtual_clock import VirtualClock

TOKEN = "a-token-that-is-long"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


def asks(headers: dict[str, str], address: str = "10.0.0.1") -> web.Request:
    return make_mocked_request("GET", "/api/overview", headers).clone(remote=address)


def lets_in(log_in: LogIn, headers: dict[str, str]) -> bool:
    return log_in.refusal(asks(headers)) is None


def logged_in(log_in: LogIn, body: object, address: str = "10.0.0.1") -> web.Response:
    async def handle() -> web.Response:
        payload = StreamReader(mock.Mock(_reading_paused=False), 2**16)
        payload.feed_data(json.dumps(body).encode())
        payload.feed_eof()
        request = make_mocked_request("POST", "/api/log-in", payload=payload)
        return await log_in.handle(request.clone(remote=address))

    return asyncio.run(handle())


def cookie(answer: web.Response) -> dict[str, str]:
    return {"Cookie": f"{COOKIE}={answer.cookies[COOKIE].value}"}


@pytest.mark.parametrize(
    ("authorization", "let_in"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer {TOKEN}", True),
        (f"Bearer {TOKEN}x", False),
        (f"Basic {TOKEN}", False),
        (f"Bearer  {TOKEN}", False),
        ("Bearer", False),
        ("Bearer ä", False),
    ],
)
def test_a_program_shows_the_token(file: Path, authorization: str, let_in: bool) -> None:
    assert lets_in(LogIn(file, over_tls=True), {"Authorization": authorization}) is let_in


def test_a_browser_gets_a_cookie_that_no_script_reads_and_that_ends(file: Path) -> None:
    clock = VirtualClock()
    log_in = LogIn(file, over_tls=True, monotonic=clock.monotonic)
    answer = logged_in(log_in, {"token": TOKEN})
    assert answer.status == 200
    made = answer.cookies[COOKIE]
    assert (made["httponly"], made["secure"], made["samesite"], made["path"]) == (True, True, "Strict", "/")
    assert lets_in(log_in, cookie(answer))
    clock.advance(SESSION_SECONDS + 1)
    assert not lets_in(log_in, cookie(answer))


@pytest.mark.parametrize("body", [{"token": "wrong"}, {"token": ""}, {"token": 1}, {}, [], {"token": TOKEN, "x": 1}])
def test_anything_but_the_token_gets_no_cookie(file: Path, body: object) -> None:
    answer = logged_in(LogIn(file, over_tls=True), body)
    assert answer.status in {400, 401}
    assert COOKIE not in answer.cookies


def test_who_has_guessed_waits_also_with_the_right_token(file: Path) -> None:
    clock = VirtualClock()
    log_in = LogIn(file, over_tls=True, monotonic=clock.monotonic)
    assert [logged_in(log_in, {"token": "wrong"}).status for _ in range(7)] == [401] * 5 + [429] * 2
    waits = logged_in(log_in, {"token": TOKEN})
    assert (waits.status, waits.headers["Retry-After"]) == (429, "1")
    clock.advance(1)
    assert logged_in(log_in, {"token": TOKEN}).status == 200


def test_tokens_in_headers_and_in_the_form_are_slowed_as_one(file: Path) -> None:
    clock = VirtualClock()
    log_in = LogIn(file, over_tls=True, monotonic=clock.monotonic)

    def status(token: str, address: str = "10.0.0.1") -> int:
        refusal = log_in.refusal(asks({"Authorization": f"Bearer {token}"}, address))
        return 200 if refusal is None else refusal.status

    browser = cookie(logged_in(log_in, {"token": TOKEN}))
    assert [status("wrong") for _ in range(3)] == [401] * 3
    assert [logged_in(log_in, {"token": "wrong"}).status for _ in range(2)] == [401] * 2
    slowed = log_in.refusal(asks({"Authorization": f"Bearer {TOKEN}"}))
    assert slowed is not None
    assert (slowed.status, slowed.headers["Retry-After"]) == (429, "1")
    assert logged_in(log_in, {"token": TOKEN}).status == 429
    assert status(TOKEN, "10.0.0.2") == 200, "another address"
    assert log_in.refusal(asks(browser)) is None, "a session goes on"
    clock.advance(1)
    assert [status("wrong"), status("wrong")] == [401, 429]
    clock.advance(2)
    assert [status(TOKEN), *(status("wrong") for _ in range(6))] == [200, *[401] * 5, 429]


def test_a_token_that_is_guessed_from_many_addresses_is_slowed_in_total(file: Path) -> None:
    clock = VirtualClock()
    log_in = LogIn(file, over_tls=True, monotonic=clock.monotonic)

    def status(token: str, address: str) -> int:
        refusal = log_in.refusal(asks({"Authorization": f"Bearer {token}"}, address))
        return 200 if refusal is None else refusal.status

    assert status(TOKEN, "10.0.0.1") == 200
    tried = [status("wrong", f"10.1.0.{number}") for number in range(100)]
    assert tried == [401] * 5 + [429] * 95
    assert status(TOKEN, "10.0.0.1") == 200, "an address that has shown the token before"


@pytest.mark.parametrize("value", ["", ".", "9999999999.", "9999999999.abcd", "x.y", "9999999999"])
def test_a_cookie_that_is_made_up_is_none(file: Path, value: str) -> None:
    assert not lets_in(LogIn(file, over_tls=True), {"Cookie": f"{COOKIE}={value}"})


def test_a_cookie_is_of_one_process_and_one_token(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in = LogIn(file, over_tls=False)
    shown = cookie(logged_in(log_in, {"token": TOKEN}))
    assert not lets_in(LogIn(file, over_tls=False), shown), "a restart"
    monkeypatch.setattr("groundwork.watched_file.CHECK_SECONDS", 0.0)
    file.write_text("another-token-that-is-long")
    os.utime(file, (1, 1))
    for _ in range(3):  # a change is taken once it has looked the same twice
        still = lets_in(log_in, shown)
    assert not still
    assert lets_in(log_in, {"Authorization": "Bearer another-token-that-is-long"})


def test_a_token_that_can_be_guessed_is_refused(file: Path) -> None:
    file.write_text("x" * (MIN_TOKEN_LENGTH - 1))
    with pytest.raises(CertificateError, match="has 15 characters, at least 16"):
        LogIn(file, over_tls=True)


def test_a_log_out_ends_that_session_and_no_other(file: Path) -> None:
    clock = VirtualClock()
    log_in = LogIn(file, over_tls=True, monotonic=clock.monotonic)
    mine = cookie(logged_in(log_in, {"token": TOKEN}))
    clock.advance(1)
    others = cookie(logged_in(log_in, {"token": TOKEN}))
    answer = asyncio.run(log_in.log_out(asks(mine)))
    assert (answer.status, answer.cookies[COOKIE].value, answer.cookies[COOKIE]["max-age"]) == (200, "", "0")
    assert not lets_in(log_in, mine)
    assert lets_in(log_in, others)
    forged = asks({"Cookie": others["Cookie"] + "x"})
    assert asyncio.run(log_in.log_out(forged)).status == 200
    assert lets_in(log_in, others), "only whoever has a session ends it"
