"""Recipes that fetch and build the peers, once, into ``.bench``, which is not committed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.figures import progress

CACHE = Path(__file__).parent.parent.parent / ".bench"
_BUILD_SECONDS = 3_600.0
_SHOWN_LINES = 15


class Missing(Exception):
    """Something cannot be measured here."""

    def __init__(self, tool: str, why: str) -> None:
        super().__init__(f"{tool} is missing: it {why}")


class RecipeFailed(Exception):
    """A recipe or a run did not work out."""


def run_recipe(what: str, arguments: Sequence[str]) -> None:
    """Runs a command of a recipe.

    Raises:
        RecipeFailed: With the end of what it wrote.
    """
    progress(f"peers: building {what}, if it is not yet")
    done = subprocess.run(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_BUILD_SECONDS, check=False
    )
    if done.returncode != 0:
        end = "\n".join(done.stdout.splitlines()[-_SHOWN_LINES:])
        raise RecipeFailed(f"{what} cannot be built ({' '.join(arguments[:2])} ...):\n{end}")
