"""The people who use the console: roles, and the file with their names and hashed passwords."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from groundwork.certificates import CertificateError
from groundwork.files import read_at_most
from groundwork.hot_reload import HotReloaded

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


RoleName = Literal["viewer", "operator", "admin"]


class Person(NamedTuple):
    """Who asks."""

    name: str
    """For the journal: of the users file or the proxy; else the address."""
    role: Role
    fleets: frozenset[str] | None = None
    """Fleets that may be seen; None: all."""


class User(NamedTuple):
    """A person of the file."""

    role: Role
    password: str | None
    """Hashed; None for one whom only a proxy knows."""
    fleets: frozenset[str] | None = None
    """Fleets that may be seen; None: all."""


def role_of(name: RoleName) -> Role:
    """The role of a name."""
    return Role[name.upper()]


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
        raise ValueError("is not a hashed password; `namesrv console-user NAME` makes one")
    return text


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    role: RoleName
    password: Annotated[str, AfterValidator(_checked_hash)] | None = None
    fleets: list[str] | None = None


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    users: dict[str, _Row] = Field(min_length=1, max_length=MAX_USERS)


Users = Mapping[str, User]
"""By name."""


def read_users(path: Path) -> Users:
    """Reads a users file. Raises CertificateError if it cannot be used."""
    try:
        rows = _File.model_validate(tomllib.loads(read_at_most(path, MAX_USERS_FILE_BYTES).decode())).users
    except OSError as error:
        raise CertificateError(f"users file {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place, text = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
        raise CertificateError(f"users file {path}: {place}: {text}") from None
    except (ValueError, RecursionError) as error:
        raise CertificateError(f"users file {path}: {error}") from None
    for name in rows:
        if not is_name(name):
            raise CertificateError(f"users file {path}: {name[:64]!r} is no name: 1 to 64 of A-Z a-z 0-9 _ . @ + -")
    return {name: _user(row) for name, row in rows.items()}


def _user(row: _Row) -> User:
    return User(role_of(row.role), row.password, None if row.fleets is None else frozenset(row.fleets))


def reloaded_users(path: Path) -> HotReloaded[Users]:
    """The users of a file, read again when it changes. Raises CertificateError if it cannot be used now."""

    def kept(error: ValueError) -> None:
        _log.error("users_file_refused", problem=str(error), in_force="those read before")

    return HotReloaded([path], lambda: read_users(path), on_kept=kept)


def user_line(name: str, role: str, password: str) -> str:
    """The part of a users file that is about one person. Raises ValueError if something of it cannot be used."""
    if role not in get_args(RoleName):
        raise ValueError(f"{role[:64]!r} is no role; there are {', '.join(get_args(RoleName))}")
    if not is_name(name):
        raise ValueError(f"{name[:64]!r} is no name: 1 to 64 of the characters A-Z a-z 0-9 _ . @ + -")
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise ValueError(
            f"the password has {len(password)} characters, {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} are allowed"
        )
    return f'[users."{name}"]\nrole = "{role}"\npassword = "{hashed(password)}"'
