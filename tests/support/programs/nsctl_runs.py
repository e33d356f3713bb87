"""Commands of nsctl, run in the process of the tests."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from nsctl.cli import app


def run(*arguments: object, exit_code: int = 0, answer: str = "") -> Result:
    """Runs a command, which ends with this exit code; ``answer`` is what somebody types."""
    result = CliRunner().invoke(app, list(map(str, arguments)), input=answer)
    assert result.exit_code == exit_code, f"{arguments}: {result.output}"
    return result


def rows(*arguments: object, exit_code: int = 0) -> list[dict[str, Any]]:
    """What a program gets from a command."""
    found: list[dict[str, Any]] = json.loads(run(*arguments, "-o", "json", exit_code=exit_code).stdout or "[]")
    return found
