"""A folder that stands first on a program's PYTHONPATH, so that everything goes wrong in it that Python reports."""

from __future__ import annotations

from pathlib import Path

TROUBLE = "TROUBLE_COMES_WITH"
"""The variable with a file: when it is there, trouble comes."""


def troubled_environment(file: Path) -> dict[str, str]:
    """The variables of a program that is troubled once a file is there."""
    return {"PYTHONPATH": str(Path(__file__).parent), TROUBLE: str(file)}
