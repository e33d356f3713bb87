"""Commands of nsctl, run in the process of the tests."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from nsctl.cli import app
from nsctl.session import FOUND, WARNED

BUSY = "EVENT_LOOP_HELD_UP"
"""What the doctor says besides where the machine of the tests is starved."""


def run(*arguments: object, exit_code: int = 0, answer: str = "") -> Result:
    """Runs a command, which ends with this exit code; ``answer`` is what somebody types."""
    result = CliRunner().invoke(app, list(map(str, arguments)), input=answer)
    assert result.exit_code == exit_code, f"{arguments}: {result.output}"
    return result


def rows(*arguments: object, exit_code: int = 0) -> list[dict[str, Any]]:
    """What a program gets from a command."""
    found: list[dict[str, Any]] = json.loads(run(*arguments, "-o", "json", exit_code=exit_code).stdout or "[]")
    return found


def examined(endpoint: object, *flags: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and findings of the doctor, as they are where the machine is not starved."""
    result = CliRunner().invoke(app, ["doctor", "-o", "json", "--namesrv", str(endpoint), *flags])
    assert result.exit_code in (0, FOUND, WARNED), result.output
    found = json.loads(result.stdout)
    assert result.exit_code == _exit_code(found), result.output
    found = [row for row in found if row["code"] != BUSY]
    return _exit_code(found), found


def _exit_code(found: list[dict[str, Any]]) -> int:
    severities = {row["severity"] for row in found}
    return FOUND if "problem" in severities else WARNED if "warning" in severities else 0
