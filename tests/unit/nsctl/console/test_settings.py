"""The console's settings, and the command that looks for it."""

from __future__ import annotations

import importlib

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from nsctl.cli import app
from nsctl.console.app import ConsoleSettings


def settings(**values: object) -> ConsoleSettings:
    return ConsoleSettings.load(None, values)


def test_it_listens_beyond_loopback_only_when_told() -> None:
    with pytest.raises(ValidationError, match="beyond loopback"):
        settings(listen="0.0.0.0:80")
    assert settings(listen="0.0.0.0:80", allow_insecure=True).listen_endpoint.port == 80


TLS = {"listen_tls_cert": "c.pem", "listen_tls_key": "k.pem"}
LOG_IN = {"log_in_token_file": "token"}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, r"no TLS \(listen_tls_cert\) and no log-in \(log_in_token_file\)"),
        (TLS, r"has no log-in \(log_in_token_file\); set them"),
        (LOG_IN, r"has no TLS \(listen_tls_cert\); set them"),
        ({**TLS, "allow_insecure": True, "permit_actions": True}, "with permit_actions that needs log_in_token_file"),
        ({"listen_tls_cert": "c.pem"}, "belong together"),
    ],
)
def test_beyond_loopback_it_has_tls_and_a_log_in_or_says_which_is_missing(
    values: dict[str, object], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        settings(listen="0.0.0.0:443", **values)
    assert settings(listen="0.0.0.0:443", permit_actions=True, **TLS, **LOG_IN).permit_actions


def test_on_loopback_actions_need_no_log_in() -> None:
    assert settings(permit_actions=True).log_in_token_file is None


def test_where_the_console_is_not_installed_the_command_says_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named 'aiohttp' (for {name})", name="aiohttp")

    monkeypatch.setattr(importlib, "import_module", missing)
    result = CliRunner().invoke(app, ["console", "--namesrv", "a:1"])
    assert result.exit_code == 2
    assert "pip install -e '.[console]'" in result.output
