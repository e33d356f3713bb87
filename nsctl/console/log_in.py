"""The log-in: who asks, by a token, a name and password, or a trusted proxy."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import math
import re
import secrets
import time
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import structlog
from aiohttp import web
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from groundwork.certificates import MAX_TOKEN_LENGTH, CertificateError, read_token
from groundwork.endpoints import site_of
from groundwork.files import read_at_most
from groundwork.flood_log import FloodLog
from groundwork.permits import bearer_token
from groundwork.watched_file import WatchedFile
from nsctl.console.protection import problem

# The people who use the console: roles, and the file with their names and hashed passwords.

MAX_USERS_FILE_BYTES = 1024 * 1024
"""Largest users file."""

MAX_USERS = 1_000
"""Most people of one file: wrong passwords are counted for each."""

MIN_PASSWORD_LENGTH = 12
"""Shorter passwords are guessed from their hashes, should the file be stolen."""

MAX_PASSWORD_LENGTH = 1_024
"""Longest password: hashing takes time by its length."""

_COST, _BLOCK, _PARALLEL = 2**15, 8, 3
"""Scrypt's numbers, one of the sets that OWASP recommends: 32 MiB and some tenths of a second for each guess."""

_HASH = re.compile(r"scrypt\$([A-Za-z0-9+/]{22}==)\$([A-Za-z0-9+/]{43}=)")
_NAME = re.compile(r"[\w.@+-]{1,64}", re.ASCII)

_log = structlog.get_logger(__name__)


class Role(IntEnum):
    """What a person may do; each role may do what those below it may."""

    VIEWER = 1
    """Sees everything."""
    OPERATOR = 2
    """Drains and restores."""
    ADMIN = 3
    """Confirms losses that the mass-loss guard does not believe."""


class Person(NamedTuple):
    """Who asks."""

    name: str
    """For the journal: of the users file or the proxy; else the address."""
    role: Role


def _role(name: object) -> Role:
    roles = {role.name.lower(): role for role in Role}
    if not isinstance(name, str) or name not in roles:
        raise ValueError(f"{str(name)[:64]!r} is no role; there are {', '.join(roles)}")
    return roles[name]


def _checked_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"{text[:64]!r} is no name: 1 to 64 of the characters A-Z a-z 0-9 _ . @ + -")
    return text


def is_name(text: str) -> bool:
    """Whether a text can be a person's name."""
    return _NAME.fullmatch(text) is not None


def hashed(password: str) -> str:
    """A password as the file has it."""
    salt = secrets.token_bytes(16)
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(_scrypt(password, salt)).decode()}"


def is_password(password: str, kept: str | None) -> bool:
    """Whether a password is the one that was hashed: some tenths of a second, also where there is none. Blocks."""
    found = _HASH.fullmatch(kept or _NOBODYS)
    assert found is not None, "the file has been checked"
    salt, digest = (base64.b64decode(part) for part in found.groups())
    return hmac.compare_digest(_scrypt(password, salt), digest) and kept is not None


def _scrypt(password: str, salt: bytes) -> bytes:
    shown = password.encode("utf-8", "replace")
    memory = 2 * 128 * _COST * _BLOCK
    return hashlib.scrypt(shown, salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, maxmem=memory, dklen=32)


_NOBODYS = f"scrypt${base64.b64encode(bytes(16)).decode()}${base64.b64encode(bytes(32)).decode()}"


def _checked_hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise ValueError("is not a hashed password; `nsctl console-user NAME` makes one")
    return text


class User(BaseModel):
    """A person of the file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Annotated[Role, BeforeValidator(_role)]
    password: Annotated[str, AfterValidator(_checked_hash)] | None = None
    """Hashed; None for a person whom only a proxy knows."""


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    users: dict[Annotated[str, AfterValidator(_checked_name)], User] = Field(min_length=1, max_length=MAX_USERS)


Users = Mapping[str, User]
"""By name."""


def read_users(path: Path) -> Users:
    """Reads a users file. Raises CertificateError if it cannot be used."""
    try:
        return _File.model_validate(tomllib.loads(read_at_most(path, MAX_USERS_FILE_BYTES).decode())).users
    except OSError as error:
        raise CertificateError(f"users file {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place, text = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
        raise CertificateError(f"users file {path}: {place}: {text}") from None
    except (ValueError, RecursionError) as error:
        raise CertificateError(f"users file {path}: {error}") from None


def reloaded_users(path: Path) -> WatchedFile[Users]:
    """The users of a file, read again when it changes. Raises CertificateError if it cannot be used now."""

    def kept(error: ValueError) -> None:
        _log.error("users_file_refused", problem=str(error), in_force="those read before")

    return WatchedFile([path], lambda: read_users(path), on_kept=kept)


def user_line(name: str, role: str, password: str) -> str:
    """The part of a users file that is about one person. Raises ValueError if something of it cannot be used."""
    _role(role)
    _checked_name(name)
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise ValueError(
            f"the password has {len(password)} characters, {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} are allowed"
        )
    return f'[users."{name}"]\nrole = "{role}"\npassword = "{hashed(password)}"'


# The header by which a proxy in front of the console says who asks.

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxy:
    """Believes a header from some addresses, and from no others."""

    def __init__(self, header: str, addresses: Sequence[Network]) -> None:
        self._header = header
        self._addresses = tuple(addresses)

    def name_in(self, request: web.Request) -> str | None:
        """The name that the proxy gives; None if there is none, or who asks is not the proxy."""
        if not self._is_proxy(request.remote):
            return None
        names = request.headers.getall(self._header, [])
        return names[0] if len(names) == 1 and is_name(names[0]) else None

    def _is_proxy(self, address: str | None) -> bool:
        try:
            ip = ipaddress.ip_address(address or "")
        except ValueError:
            return False
        return any(ip in network for network in self._addresses)


# Wrong passwords and tokens: each costs whoever sent it a longer pause, by address and by the name that was tried.
# It is one account for the log-in form and for tokens in headers: otherwise the one is a way around the other.

FREE_GUESSES = 5
"""Wrong ones that cost nothing: people mistype."""

MAX_ADDRESSES = 10_000
"""Addresses that are remembered; beyond, the one that tried least recently is forgotten."""

LONGEST_ADDRESS_SECONDS = 60.0
"""Longest pause of an address."""

LONGEST_NAME_SECONDS = 10.0
"""Longest pause of a name: who guesses from many addresses keeps the person it belongs to out for no longer, and from
an address where the person has logged in before not at all."""

THE_TOKEN = ""
"""The token among the names: guesses of it from many addresses are slowed, too. No person has this name."""

FORGET_SECONDS = 900.0
"""An address or name without another guess for so long begins anew."""


@dataclass(slots=True)
class _Tried:
    count: int
    at: float


class _Pauses:
    """Pauses of one kind of key, doubled with each guess."""

    def __init__(self, longest_seconds: float, monotonic: Callable[[], float]) -> None:
        self._longest = longest_seconds
        self._monotonic = monotonic
        self._tried: OrderedDict[str, _Tried] = OrderedDict()
        """The one that tried last comes last."""

    def left(self, key: str) -> float:
        """Seconds until the next guess is looked at."""
        tried = self._tried.get(key)
        if tried is None or tried.count < FREE_GUESSES:
            return 0.0
        pause = min(2.0 ** min(tried.count - FREE_GUESSES, 30), self._longest)
        return max(0.0, tried.at + pause - self._monotonic())

    def count(self, key: str) -> None:
        """A guess is made; it counts as wrong until ``forget``."""
        now, tried = self._monotonic(), self._tried.pop(key, None)
        anew = tried is None or tried.at + FORGET_SECONDS < now
        self._tried[key] = _Tried(1 if anew or tried is None else tried.count + 1, now)
        if len(self._tried) > MAX_ADDRESSES:
            self._tried.popitem(last=False)

    def forget(self, key: str) -> None:
        """It was right."""
        self._tried.pop(key, None)


class Guesses:
    """Who has to wait before the next log-in is looked at."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._addresses = _Pauses(LONGEST_ADDRESS_SECONDS, monotonic)
        self._names = _Pauses(LONGEST_NAME_SECONDS, monotonic)
        self._at_home: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Names with the addresses from which they have logged in."""

    def left(self, address: str, name: str | None) -> float:
        """Seconds that a log-in from an address has to wait; with a name only if there is such a person."""
        network = site_of(address)
        by_name = 0.0 if name is None or (name, network) in self._at_home else self._names.left(name)
        return max(self._addresses.left(network), by_name)

    def begin(self, address: str, name: str | None) -> None:
        """A log-in is looked at. It counts as wrong from now on, so that many at once are no way around the pauses."""
        network = site_of(address)
        self._addresses.count(network)
        if name is not None and (name, network) not in self._at_home:
            self._names.count(name)

    def right(self, address: str, name: str | None) -> None:
        network = site_of(address)
        self._addresses.forget(network)
        if name is not None:
            self._names.forget(name)
            self._at_home[name, network] = None
            self._at_home.move_to_end((name, network))
            if len(self._at_home) > MAX_ADDRESSES:
                self._at_home.popitem(last=False)


# The log-in: a token or a name and password, or a name from a trusted proxy.
#
# Nothing is kept: a cookie says whose it is and until when it is good, by the monotonic clock. It is signed with a
# secret of this process and the token, or hashed password, in force. So a restart, another token and another password
# end sessions.

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


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    token: str | None = None
    name: str = Field("", max_length=64)
    password: str | None = Field(None, max_length=MAX_PASSWORD_LENGTH)


class LogIn:
    """Finds out who asks. Files may be replaced at any time; one that cannot be used changes nothing."""

    def __init__(
        self,
        token_file: Path | None,
        *,
        over_tls: bool,
        users: WatchedFile[Users] | None = None,
        proxy: TrustedProxy | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the token.

        Args:
            token_file: The token, in the file's only line; None: there is none.
            over_tls: Whether browsers are to keep the cookie from connections without TLS.
            users: People with passwords, and the roles of people whom the proxy names.
            proxy: A proxy that names people. It may name others than those of the users file: they are viewers.
            monotonic: The clock of pauses and sessions, seconds.

        Raises:
            CertificateError: The file cannot be used; the text says why.
        """
        self._over_tls = over_tls
        self._users = users
        self._proxy = proxy
        self._monotonic = monotonic
        self._refused = FloodLog("log_in_refused", REFUSED_LOG_SECONDS, monotonic)
        self._guesses = Guesses(monotonic)
        self._secret = secrets.token_bytes(32)
        self._token = WatchedFile([token_file], lambda: _read(token_file), on_kept=_kept) if token_file else None
        self._ended: dict[str, None] = {}
        """Signatures of cookies that were logged out, oldest first."""
        self._hashing = asyncio.Semaphore(PASSWORDS_AT_ONCE)
        self._waiting = 0

    def refusal(self, request: web.Request) -> web.Response | None:
        """Returns the answer to a request of somebody unknown, or None: then the request has the person."""
        token = bearer_token(request.headers.get("Authorization", ""))
        if token is None:
            return None if self.lets_in(request) else _not_logged_in()
        address = request.remote or "?"
        if (slowed := self._slowed(address, THE_TOKEN)) is not None:
            return slowed
        if self.lets_in(request):
            self._guesses.right(address, THE_TOKEN)
            return None
        self._guesses.begin(address, THE_TOKEN)
        self._refused.tell(viewer=address)
        return _not_logged_in()

    def lets_in(self, request: web.Request) -> bool:
        """Whether it is known who asks. The request has the person afterwards. A wrong token is not counted here."""
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
        if asked.token is not None:
            known = THE_TOKEN
        if (slowed := self._slowed(address, known)) is not None:
            return slowed
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
        return web.json_response({"token": self._token is not None, "password": self._users is not None})

    def _slowed(self, address: str, name: str | None) -> web.Response | None:
        """The answer to a guess that comes before its pause is over."""
        left = self._guesses.left(address, name)
        if left <= 0:
            return None
        self._refused.tell(viewer=address)
        return _later(429, "TOO_MANY_GUESSES", left)

    def _who(self, request: web.Request) -> Person | None:
        request[BY_COOKIE] = False
        token = bearer_token(request.headers.get("Authorization", ""))
        if token is not None:
            return _bearer(request) if self._is_token(token) else None
        if self._proxy is not None and (name := self._proxy.name_in(request)) is not None:
            user = self._user(name)
            return Person(name, Role.VIEWER if user is None else user.role)
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
        if int(ends) <= self._monotonic() or signature in self._ended:
            return None
        user = self._user(name)
        return _bearer(request) if user is None else Person(name, user.role)

    def _with_cookie(self, answer: web.Response, name: str) -> web.Response:
        ends = str(int(self._monotonic()) + SESSION_SECONDS)
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
        if self._users is None or asked.password is None:
            return False
        user = self._user(asked.name)
        self._waiting += 1
        try:
            async with self._hashing:
                return await asyncio.to_thread(is_password, asked.password, None if user is None else user.password)
        finally:
            self._waiting -= 1

    def _user(self, name: str) -> User | None:
        return None if self._users is None else self._users.refreshed()[1].get(name)

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


def _not_logged_in() -> web.Response:
    return problem(401, "NOT_LOGGED_IN", "log in, or send 'Authorization: Bearer TOKEN'")


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
