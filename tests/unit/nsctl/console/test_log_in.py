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


def asks(headers: dict[str, str]) -> web.Request:
    return make_mocked_request("GET", "/api/overview", headers)


def logged_in(log_in: LogIn, body: object) -> web.Response:
    async def handle() -> web.Response:
        payload = StreamReader(mock.Mock(_reading_paused=False), 2**16)
        payload.feed_data(json.dumps(body).encode())
        payload.feed_eof()
        return await log_in.handle(make_mocked_request("POST", "/api/log-in", payload=payload))

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
        ("Bearer", False),
        ("Bearer ä", False),
    ],
)
def test_a_program_shows_the_token(file: Path, authorization: str, let_in: bool) -> None:
    assert LogIn(file, over_tls=True).lets_in(asks({"Authorization": authorization})) is let_in


def test_a_browser_gets_a_cookie_that_no_script_reads_and_that_ends(file: Path) -> None:
    clock = VirtualClock()
    log_in = LogIn(file, over_tls=True, wall_clock=clock)
    answer = logged_in(log_in, {"token": TOKEN})
    assert answer.status == 200
    made = answer.cookies[COOKIE]
    assert (made["httponly"], made["secure"], made["samesite"], made["path"]) == (True, True, "Strict", "/")
    assert log_in.lets_in(asks(cookie(answer)))
    clock.advance(SESSION_SECONDS + 1)
    assert not log_in.lets_in(asks(cookie(answer)))


@pytest.mark.parametrize("body", [{"token": "wrong"}, {"token": ""}, {"token": 1}, {}, [], {"token": TOKEN, "x": 1}])
def test_anything_but_the_token_gets_no_cookie(file: Path, body: object) -> None:
    answer = logged_in(LogIn(file, over_tls=True), body)
    assert answer.status in {400, 401}
    assert COOKIE not in answer.cookies


def test_who_has_guessed_waits_also_with_the_right_token(file: Path) -> None:
    clock = VirtualClock()
    log_in = LogIn(file, over_tls=True, wall_clock=clock, monotonic=clock.monotonic)
    assert [logged_in(log_in, {"token": "wrong"}).status for _ in range(7)] == [401] * 5 + [429] * 2
    waits = logged_in(log_in, {"token": TOKEN})
    assert (waits.status, waits.headers["Retry-After"]) == (429, "1")
    clock.advance(1)
    assert logged_in(log_in, {"token": TOKEN}).status == 200


@pytest.mark.parametrize("value", ["", ".", "9999999999.", "9999999999.abcd", "x.y", "9999999999"])
def test_a_cookie_that_is_made_up_is_none(file: Path, value: str) -> None:
    assert not LogIn(file, over_tls=True).lets_in(asks({"Cookie": f"{COOKIE}={value}"}))


def test_a_cookie_is_of_one_process_and_one_token(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in = LogIn(file, over_tls=False)
    shown = cookie(logged_in(log_in, {"token": TOKEN}))
    assert not LogIn(file, over_tls=False).lets_in(asks(shown)), "a restart"
    monkeypatch.setattr("groundwork.hot_reload.CHECK_SECONDS", 0.0)
    file.write_text("another-token-that-is-long")
    os.utime(file, (1, 1))
    for _ in range(3):  # a change is taken once it has looked the same twice
        still = log_in.lets_in(asks(shown))
    assert not still
    assert log_in.lets_in(asks({"Authorization": "Bearer another-token-that-is-long"}))


def test_a_token_that_can_be_guessed_is_refused(file: Path) -> None:
    file.write_text("x" * (MIN_TOKEN_LENGTH - 1))
    with pytest.raises(CertificateError, match="has 15 characters, at least 16"):
        LogIn(file, over_tls=True)


def test_a_log_out_ends_that_session_and_no_other(file: Path) -> None:
    clock = VirtualClock()
    log_in = LogIn(file, over_tls=True, wall_clock=clock)
    mine = cookie(logged_in(log_in, {"token": TOKEN}))
    clock.advance(1)
    others = cookie(logged_in(log_in, {"token": TOKEN}))
    answer = asyncio.run(log_in.log_out(asks(mine)))
    assert (answer.status, answer.cookies[COOKIE].value, answer.cookies[COOKIE]["max-age"]) == (200, "", "0")
    assert not log_in.lets_in(asks(mine))
    assert log_in.lets_in(asks(others))
    forged = asks({"Cookie": others["Cookie"] + "x"})
    assert asyncio.run(log_in.log_out(forged)).status == 200
    assert log_in.lets_in(asks(others)), "only whoever has a session ends it"
