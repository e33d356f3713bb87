"""Times that people type: ``90s``, ``30m``, ``2h``, ``7d``."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhd])")
MOST_DAYS = 3_650
"""Longest duration: ten years. Longer ones are typing errors."""


def seconds(text: str) -> int:
    """The seconds of a duration such as ``2h``.

    Raises:
        typer.BadParameter: It is none, or too long.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r:.50} is no duration such as 90s, 30m, 2h or 7d")
    duration = int(found[1]) * _UNITS[found[2]]
    if not 0 < duration <= MOST_DAYS * 86_400:
        raise typer.BadParameter(f"{text} is not between 1s and {MOST_DAYS}d")
    return duration


def millis_from_now(duration: int | None) -> int | None:
    """Milliseconds since the Unix epoch after so many seconds; None if there is no such duration."""
    return None if duration is None else time.time_ns() // 1_000_000 + duration * 1_000


For = Annotated[
    int | None, typer.Option("--for", parser=seconds, metavar="DURATION", help="It ends by itself after 30m, 2h, 7d.")
]
Since = Annotated[
    int | None, typer.Option("--since", parser=seconds, metavar="DURATION", help="Not older than 30m, 2h, 7d.")
]
Silent = Annotated[
    int | None, typer.Option("--silent", parser=seconds, metavar="DURATION", help="Only those silent for longer.")
]
