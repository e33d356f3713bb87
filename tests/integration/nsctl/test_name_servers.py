"""Which name servers a command asks: an option before or after the command, on every command."""

from __future__ import annotations

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from nsctl.cli import app
from nsctl.session import UNREACHABLE, USAGE

NOBODY, OTHER = "127.0.0.1:1", "127.0.0.1:2"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"NAMESRV_ADDR": "127.0.0.1:3"})


def leaves() -> list[tuple[str, ...]]:
    """All commands, also those of groups."""
    found: list[tuple[str, ...]] = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        found += [(name, part) for part in getattr(command, "commands", ())] or [(name,)]
    return found


OF_NAME_SERVERS = [leaf for leaf in leaves() if leaf[0] not in ("agent", "console")]


@pytest.mark.parametrize("leaf", OF_NAME_SERVERS, ids=" ".join)
def test_every_command_takes_name_servers_before_and_after_it(leaf: tuple[str, ...]) -> None:
    assert "--namesrv" in run(*leaf, "--help").stdout
    assert run("--namesrv", NOBODY, *leaf, "--help").exit_code == 0


@pytest.mark.parametrize("arguments", [("route", "T"), ("kv", "list"), ("status",), ("intents",)])
def test_the_option_before_the_command_names_the_name_servers(arguments: tuple[str, ...]) -> None:
    for option in ("--namesrv", "-n"):
        result = run(option, NOBODY, *arguments)
        assert result.exit_code == UNREACHABLE
        assert result.stderr.startswith(f"nsctl: {NOBODY}: UNAVAILABLE")


def test_the_option_after_the_command_wins() -> None:
    assert run("--namesrv", NOBODY, "route", "T", "--namesrv", OTHER).stderr.startswith(f"nsctl: {OTHER}: ")


def test_a_context_may_be_named_before_the_command() -> None:
    result = run("--context", "none", "status")
    assert result.exit_code == USAGE
    assert "contexts.toml" in result.stderr


def test_commands_that_ask_agents_say_that_they_ask_no_name_servers() -> None:
    result = run("--namesrv", NOBODY, "agent", "status", OTHER)
    assert (result.exit_code, result.stderr) == (
        USAGE,
        "nsctl: --namesrv is for name servers, and this command asks agents: name them as AGENT\n",
    )
