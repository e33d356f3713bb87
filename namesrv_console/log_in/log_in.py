"""The log-in: a token or a name and password, or a name from a trusted proxy.

Nothing is kept: a cookie says whose it is and until when it is good, and is signed with a secret of this process and
the token, or hashed password, in force. So a restart, another token and another password end sessions.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from groundwork.certificates import MAX_TOKEN_LENGTH, CertificateError, read_token
from groundwork.flood_log import FloodLog
from groundwork.hot_reload import HotReloaded
from namesrv_console.listener.protection import problem
from namesrv_console.log_in.guesses import Guesses
from namesrv_console.log_in.people import MAX_PASSWORD_LENGTH, Person, Role, User, Users, is_password
from namesrv_console.log_in.proxy import TrustedProxy

COOKIE = "namesrv_console"

SESSION_SECONDS = 12 * 3600
"""How long a browser stays logged in: a working day."""

MIN_TOKEN_LENGTH = 16
"""Shorter tokens can be guessed; programs may try them with every request."""

REFUSED_LOG_SECONDS = 10.0
"""Between two log lines about wrong tokens and passwords: a guess does not cost a line."""

PASSWORDS_AT_ONCE = 2
"""Passwords that are hashed at once: each takes 32 MiB and a core for some tenths of a second."""

PASSWORDS_WAITING = 20
"""Log-ins that wait for that; more are told to come again."""

PATH = "/api/log-in"

PERSON = web.RequestKey("person", Person)
"""Where a request that was let in has who asks."""

BY_COOKIE = web.RequestKey("by_cookie", bool)
"""Where a request has whether it came with a cookie, which a log-out ends."""

MAX_ENDED = 10_000
"""Log-outs that are remembered until their cookies would end; beyond it the oldest are forgotten."""

_log = structlog.get_logger(__name__)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    token: str | None = None
    name: str = Field("", max_length=64)
    password: str | None = Field(None, max_length=MAX_PASSWORD_LENGTH)


class Doors(NamedTuple):
    """How people get in, beside the token."""

    users: HotReloaded[Users] | None = None
    proxy: TrustedProxy | None = None
    proxy_role: Role = Role.VIEWER
    """Of those whom the proxy names and the users file does not."""


class LogIn:
    """Finds out who asks. Files may be replaced at any time; one that cannot be used changes nothing."""

    def __init__(
        self,
        token_file: Path | None,
        *,
        over_tls: bool,
        doors: Doors | None = None,
        wall_clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the token.

        Args:
            token_file: The token, in the file's only line; None: there is none.
            over_tls: Whether browsers are to keep the cookie from connections without TLS.
            doors: Other ways in.
            wall_clock: Seconds since the Unix epoch.
            monotonic: The clock of pauses, seconds.

        Raises:
            CertificateError: The file cannot be used; the text says why.
        """
        self._over_tls = over_tls
        self._doors = doors or Doors()
        self._wall_clock = wall_clock
        self._refused = FloodLog("log_in_refused", REFUSED_LOG_SECONDS, monotonic)
        self._guesses = Guesses(monotonic)
        self._secret = secrets.token_bytes(32)
        self._token = HotReloaded([token_file], lambda: _read(token_file), on_kept=_kept) if token_file else None
        self._ended: dict[str, None] = {}
        """Signatures of cookies that were logged out, oldest first."""
        self._hashing = asyncio.Semaphore(PASSWORDS_AT_ONCE)
        self._waiting = 0

    def lets_in(self, request: web.Request) -> bool:
        """Whether it is known who asks. The request has the person afterwards."""
        person = self._who(request)
        if person is not None:
            request[PERSON] = person
        return person is not None

    async def handle(self, request: web.Request) -> web.Response:
        """Takes a token, or a name and password, and gives a cookie for it."""
        try:
            asked = _Asked.model_validate_json(await request.read())
        except ValidationError:
            asked = _Asked(token=None, name="", password=None)
        if (asked.token is None) == (asked.password is None):
            return problem(
                400, "INVALID_FIELD", 'the body is not {"token": "..."} or {"name": "...", "password": "..."}'
            )
        address = request.remote or "?"
        known = asked.name if self._user(asked.name) is not None else None
        left = self._guesses.left(address, known)
        if left > 0:
            self._refused.tell(viewer=address)
            return _later(429, "TOO_MANY_GUESSES", left)
        if self._waiting >= PASSWORDS_WAITING:
            return _later(503, "BUSY", 1.0)
        self._guesses.begin(address, known)
        if not await self._is_right(asked):
            self._refused.tell(viewer=address)
            if asked.token is not None:
                return problem(401, "WRONG_TOKEN", "this is not the token")
            return problem(401, "WRONG_PASSWORD", "there is nobody with this name and password")
        self._guesses.right(address, known)
        _log.info("logged_in", viewer=address, **({"name": asked.name} if asked.token is None else {}))
        return self._with_cookie(web.json_response({}), asked.name if asked.token is None else "")

    async def log_out(self, request: web.Request) -> web.Response:
        """Ends the session of a cookie, here and in the browser."""
        if self.lets_in(request) and request[BY_COOKIE]:
            self._ended[request.cookies[COOKIE].rpartition(".")[2]] = None
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]
            _log.info("logged_out", viewer=request.remote, name=request[PERSON].name)
        answer = web.json_response({})
        answer.del_cookie(COOKIE, secure=self._over_tls, httponly=True, samesite="Strict")
        return answer

    async def ways(self, _: web.Request) -> web.Response:
        """Tells the page what to ask for."""
        return web.json_response({"token": self._token is not None, "password": self._doors.users is not None})

    def _who(self, request: web.Request) -> Person | None:
        request[BY_COOKIE] = False
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if self._is_token(token.strip()):
                return _bearer(request)
            self._refused.tell(viewer=request.remote)
            return None
        if self._doors.proxy is not None and (name := self._doors.proxy.name_in(request)) is not None:
            user = self._user(name)
            return Person(name, self._doors.proxy_role) if user is None else Person(name, user.role, user.fleets)
        person = self._of_cookie(request)
        request[BY_COOKIE] = person is not None
        return person

    def _of_cookie(self, request: web.Request) -> Person | None:
        said, _, signature = request.cookies.get(COOKIE, "").rpartition(".")
        whose, _, ends = said.partition(".")
        name = ""
        with suppress(ValueError):
            name = base64.urlsafe_b64decode(whose + "=" * (-len(whose) % 4)).decode()
        expected = self._signature(name, ends)
        if expected is None or not hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode()):
            return None
        if int(ends) <= self._wall_clock() or signature in self._ended:
            return None
        user = self._user(name)
        return _bearer(request) if user is None else Person(name, user.role, user.fleets)

    def _with_cookie(self, answer: web.Response, name: str) -> web.Response:
        ends = str(int(self._wall_clock()) + SESSION_SECONDS)
        answer.set_cookie(
            COOKIE,
            f"{base64.urlsafe_b64encode(name.encode()).decode().rstrip('=')}.{ends}.{self._signature(name, ends)}",
            max_age=SESSION_SECONDS,
            secure=self._over_tls,
            httponly=True,
            samesite="Strict",
        )
        return answer

    async def _is_right(self, asked: _Asked) -> bool:
        if asked.token is not None:
            return self._is_token(asked.token.strip())
        if self._doors.users is None or asked.password is None:
            return False
        user = self._user(asked.name)
        self._waiting += 1
        try:
            async with self._hashing:
                return await asyncio.to_thread(is_password, asked.password, None if user is None else user.password)
        finally:
            self._waiting -= 1

    def _user(self, name: str) -> User | None:
        return None if self._doors.users is None else self._doors.users.refreshed()[1].get(name)

    def _is_token(self, token: str) -> bool:
        if self._token is None:
            return False
        shown = token[: MAX_TOKEN_LENGTH + 1].encode("utf-8", "replace")
        return hmac.compare_digest(shown, self._token.refreshed()[1].encode())

    def _signature(self, name: str, ends: str) -> str | None:
        """What a cookie of a person, or of the token, is signed with; None if there is no such person or no token."""
        if name:
            user = self._user(name)
            secret = None if user is None else user.password
        else:
            secret = None if self._token is None else self._token.refreshed()[1]
        if secret is None:
            return None
        signed = f"{name} {ends} {secret}".encode("utf-8", "replace")
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest()


def _bearer(request: web.Request) -> Person:
    """Whoever has the token: nobody knows who it is, but it may do everything."""
    return Person(request.remote or "?", Role.ADMIN)


def _later(status: int, reason: str, seconds: float) -> web.Response:
    answer = problem(status, reason, f"try again in {math.ceil(seconds)} s")
    answer.headers["Retry-After"] = str(math.ceil(seconds))
    return answer


def _read(path: Path) -> str:
    token = read_token(path)
    if len(token) < MIN_TOKEN_LENGTH:
        raise CertificateError(f"{path}: the token has {len(token)} characters, at least {MIN_TOKEN_LENGTH}")
    return token


def _kept(error: ValueError) -> None:
    _log.error("log_in_token_refused", problem=str(error), in_force="the one read before")
