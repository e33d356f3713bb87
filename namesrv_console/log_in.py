"""The log-in: a token, sent by programs with each request and kept by browsers as a cookie.

Nothing is kept: a cookie says until when it is good, and is signed with a secret of this process and the token in
force. So a restart and another token end all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from groundwork.connections.certificates import CertificateError
from groundwork.connections.channels import MAX_TOKEN_LENGTH, read_token
from groundwork.files.hot_reload import HotReloaded
from groundwork.flood_log import FloodLog
from namesrv_console.protection import problem

COOKIE = "namesrv_console"

SESSION_SECONDS = 12 * 3600
"""How long a browser stays logged in: a working day."""

MIN_TOKEN_LENGTH = 16
"""Shorter tokens can be guessed; nothing else bounds how often that is tried."""

REFUSED_LOG_SECONDS = 10.0
"""Between two log lines about wrong tokens: a guess does not cost a line."""

PATH = "/api/log-in"

_log = structlog.get_logger(__name__)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    token: str


class LogIn:
    """Checks tokens and cookies. The file may be replaced at any time; one that cannot be used changes nothing."""

    def __init__(self, token_file: Path, *, over_tls: bool, wall_clock: Callable[[], float] = time.time) -> None:
        """Reads the token.

        Args:
            token_file: The token, in the file's only line.
            over_tls: Whether browsers are to keep the cookie from connections without TLS.
            wall_clock: Seconds since the Unix epoch.

        Raises:
            CertificateError: The file cannot be used; the text says why.
        """
        self._over_tls = over_tls
        self._wall_clock = wall_clock
        self._refused = FloodLog("log_in_refused", REFUSED_LOG_SECONDS)
        self._secret = secrets.token_bytes(32)
        self._token = HotReloaded([token_file], lambda: _read(token_file), on_kept=_kept)

    def lets_in(self, request: web.Request) -> bool:
        """Whether a request shows the token, or a cookie that is still good."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(token.strip())
        ends, _, signature = request.cookies.get(COOKIE, "").partition(".")
        is_ours = hmac.compare_digest(signature.encode("utf-8", "replace"), self._signature(ends).encode())
        return is_ours and int(ends) > self._wall_clock()

    async def handle(self, request: web.Request) -> web.Response:
        """Takes a token and gives a cookie for it."""
        try:
            asked = _Asked.model_validate_json(await request.read())
        except ValidationError:
            return problem(400, "INVALID_FIELD", 'the body is not {"token": "..."}')
        if not self._is_token(asked.token.strip()):
            self._refused.tell(viewer=request.remote)
            return problem(401, "WRONG_TOKEN", "this is not the token")
        ends = str(int(self._wall_clock()) + SESSION_SECONDS)
        answer = web.json_response({})
        answer.set_cookie(
            COOKIE,
            f"{ends}.{self._signature(ends)}",
            max_age=SESSION_SECONDS,
            secure=self._over_tls,
            httponly=True,
            samesite="Strict",
        )
        _log.info("logged_in", viewer=request.remote)
        return answer

    def _is_token(self, token: str) -> bool:
        shown = token[: MAX_TOKEN_LENGTH + 1].encode("utf-8", "replace")
        return hmac.compare_digest(shown, self._token.refreshed()[1].encode())

    def _signature(self, ends: str) -> str:
        signed = f"{ends} {self._token.refreshed()[1]}".encode("utf-8", "replace")
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest()


def _read(path: Path) -> str:
    token = read_token(path)
    if len(token) < MIN_TOKEN_LENGTH:
        raise CertificateError(f"{path}: the token has {len(token)} characters, at least {MIN_TOKEN_LENGTH}")
    return token


def _kept(error: ValueError) -> None:
    _log.error("log_in_token_refused", problem=str(error), in_force="the one read before")
