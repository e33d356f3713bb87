"""The users file, who a proxy may name, and the command that makes a line."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from typer.testing import CliRunner

from groundwork.certificates import CertificateError
from nsctl.cli import app
from nsctl.console.log_in import (
    PERSON,
    LogIn,
    Person,
    Role,
    TrustedProxy,
    hashed,
    is_password,
    read_users,
    reloaded_users,
)

PASSWORD = "twelve letters"
HASHED = "scrypt$" + "A" * 22 + "==$" + "A" * 43 + "="


def asks(address: str, **headers: str) -> web.Request:
    transport = mock.Mock()
    transport.get_extra_info.side_effect = lambda name, default=None: (address, 1) if name == "peername" else default
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request("GET", "/api/overview", named, transport=transport)


def test_a_password_is_known_by_its_hash_and_no_two_hashes_are_alike() -> None:
    kept = hashed(PASSWORD)
    assert is_password(PASSWORD, kept)
    assert not is_password(PASSWORD + "x", kept)
    assert not is_password(PASSWORD, None)
    assert hashed(PASSWORD) != kept
    assert PASSWORD not in kept


def test_the_command_makes_what_the_file_takes(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["console-user", "maria", "--role", "operator"], input=f"{PASSWORD}\n")
    assert done.exit_code == 0, done.output
    file = tmp_path / "users.toml"
    file.write_text(done.stdout)
    user = read_users(file)["maria"]
    assert user.role is Role.OPERATOR
    assert is_password(PASSWORD, user.password)


@pytest.mark.parametrize(
    ("arguments", "password", "problem"),
    [
        (("ma ria",), PASSWORD, "is no name"),
        (("maria",), "short", "has 5 characters, 12 to 1024 are allowed"),
        (("maria", "--role", "king"), PASSWORD, "is no role; there are viewer, operator, admin"),
    ],
)
def test_the_command_refuses_what_the_file_would(arguments: tuple[str, ...], password: str, problem: str) -> None:
    done = CliRunner().invoke(app, ["console-user", *arguments], input=f"{password}\n")
    assert done.exit_code == 2
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "users: Field required"),
        ("[users]", "at least 1 item"),
        ('[users.a]\nrole = "king"', "users.a.role: 'king' is no role; there are viewer, operator, admin"),
        ("[users.a]\nrole = []", "users.a.role: '[]' is no role"),
        ('[users.a]\nrole = "admin"\npassword = "secret"', "is not a hashed password"),
        (f'[users.a]\nrole = "admin"\npassword = "{HASHED}x"', "is not a hashed password"),
        ('[users."a b"]\nrole = "admin"', "is no name"),
        ('[users.a]\nrole = "admin"\nadmin = true', "Extra inputs are not permitted"),
        ("[", "users file"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, content: str | None, problem: str) -> None:
    file = tmp_path / "users.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CertificateError) as raised:
        read_users(file)
    assert problem in str(raised.value)
    assert str(file) in str(raised.value)
    assert "secret" not in str(raised.value)


def person(log_in: LogIn, request: web.Request) -> Person | None:
    return request[PERSON] if log_in.refusal(request) is None else None


def test_a_proxy_names_people_and_nobody_else_does(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text('[users.maria]\nrole = "admin"\n')
    proxy = TrustedProxy("X-User", [ipaddress.ip_network("10.0.0.0/24")])
    log_in = LogIn(None, over_tls=True, users=reloaded_users(file), proxy=proxy)
    assert person(log_in, asks("10.0.0.7", X_User="maria")) == Person("maria", Role.ADMIN)
    assert person(log_in, asks("10.0.0.7", X_User="other@example.com")) == Person("other@example.com", Role.VIEWER)
    for request in (
        asks("10.0.1.7", X_User="maria"),
        asks("10.0.0.7"),
        asks("10.0.0.7", X_User=""),
        asks("10.0.0.7", X_User="maria (admin)"),
        asks("10.0.0.7", X_User="x" * 65),
        asks("10.0.0.7", Forwarded="maria"),
    ):
        assert person(log_in, request) is None
