"""What ``nsctl doctor`` finds, whatever the machine of the tests is busy with."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from nsctl.cli import app
from nsctl.session import FOUND, WARNED

BUSY = "EVENT_LOOP_HELD_UP"
"""What the doctor says besides where the machine of the tests is starved."""


def examined(endpoint: object, *flags: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and findings, as they are where the machine is not starved."""
    result = CliRunner().invoke(app, ["doctor", "-o", "json", "--namesrv", str(endpoint), *flags])
    assert result.exit_code in (0, FOUND, WARNED), result.output
    rows = json.loads(result.stdout)
    assert result.exit_code == _exit_code(rows), result.output
    found = [row for row in rows if row["code"] != BUSY]
    return _exit_code(found), found


def _exit_code(rows: list[dict[str, Any]]) -> int:
    severities = {row["severity"] for row in rows}
    return FOUND if "problem" in severities else WARNED if "warning" in severities else 0
