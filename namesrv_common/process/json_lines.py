"""Lines to the person who starts a program: text, or JSON objects where the program's log is JSON.

A program has such lines before it has a log. This module imports nothing that has to be installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar, Literal

from namesrv_common.printable import print_error, printable_json

LogFormat = Literal["text", "json"]


class _Lines:
    are_json: ClassVar[bool] = False


def write_json_lines() -> None:
    """Makes each later line of `report` an object."""
    _Lines.are_json = True


def report(program: str, text: str, event: str, level: str) -> None:
    """Writes one line to standard error: text, or an object with the keys of a log line."""
    if not _Lines.are_json:
        print_error(program, text)
        return
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"program": program, "text": text, "event": event, "level": level, "timestamp": now}
    sys.stderr.write(printable_json(json.dumps(line)) + "\n")


def is_json_wanted(words: Sequence[str], variable: str | None) -> bool:
    """Reports whether the words of a command line that cannot be parsed, or else a variable, ask for JSON."""
    flags = " ".join(words).replace("=", " ")
    return "--log-format json" in flags if "--log-format" in flags else variable == "json"
