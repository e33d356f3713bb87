"""Standard error of a program whose log is JSON: what else is written there becomes a JSON object a line, too.

Command lines, warnings and tracebacks of Python write text to standard error. Whoever collects a log of JSON could not
read it, and would take a traceback for thirty lines of nobody. Not covered is what native code writes as it takes the
process down with it: there is nobody left to put it into words.

This module imports nothing that has to be installed: it works before a program's libraries are found to be missing.
"""

from __future__ import annotations

import atexit
import io
import json
import sys
import threading
import tomllib
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

from groundwork.printable import printable_json, say

LogFormat = Literal["text", "json"]

MAX_REST = 65_536
"""Characters of a line that has not ended, of which one is made anyway."""


class JsonLines(io.TextIOBase):
    """A standard error that makes an object of each line of text."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._lock = threading.RLock()
        self._rest = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor of the stream, for who must have one; what goes there by itself is no object."""
        return self.stream.fileno()

    def write(self, text: str) -> int:
        """Takes text; each line that has ended becomes an object."""
        if not isinstance(text, str):
            raise TypeError(f"text is wanted, not {type(text).__name__}")
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > MAX_REST:
                lines.append(self._rest)
                self._rest = ""
            for line in filter(str.strip, lines):
                self.put("said", "warning", text=line)
        return len(text)

    def put(self, event: str, level: str, **fields: object) -> None:
        """Writes an object of our own, with the keys that those of the log have."""
        line = {**fields, "event": event, "level": level, "logger": "stderr", "timestamp": _now()}
        with self._lock, suppress(ValueError, OSError):  # nobody reads it any more
            self.stream.write(printable_json(json.dumps(line, default=str)) + "\n")
            self.stream.flush()

    def end(self) -> None:
        """Writes what is left without an end of its line."""
        self.write("\n")


def tell(program: str, text: str, event: str, level: str) -> None:
    """One line for who started a program: plain, or an object of a name and a level where its log is JSON."""
    if isinstance(sys.stderr, JsonLines):
        sys.stderr.put(event, level, program=program, text=text)
    else:
        say(program, text)


def is_json_wanted(services: Mapping[str, str], arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a program is told to log JSON, as far as can be seen before its settings are read.

    Args:
        services: Commands that have a log, each with what its variables begin with.
    """
    prefix = next((services[word] for word in arguments if word in services), None)
    if prefix is None:
        return False
    wanted = _value_of("--log-format", arguments) or environment.get(f"{prefix}LOG_FORMAT") or ""
    file = _value_of("--config", arguments)
    if not wanted and file:
        with suppress(OSError, ValueError):
            wanted = str(tomllib.loads(Path(file).read_text(encoding="utf-8")).get("log_format"))
    return wanted == "json"


def _value_of(flag: str, arguments: Sequence[str]) -> str:
    """The value of a flag that is given as one word or as two; empty if it is not."""
    found = ""
    for word, following in zip(arguments, (*arguments[1:], ""), strict=True):
        if word == flag:
            found = following
        elif word.startswith(f"{flag}="):
            found = word.removeprefix(f"{flag}=")
    return found


def take_stderr() -> None:
    """Has all that this process writes to standard error be JSON from now on, also exceptions that nobody catches."""
    if isinstance(sys.stderr, JsonLines):
        return
    lines = JsonLines(sys.stderr)
    sys.stderr = lines
    atexit.register(lines.end)

    def uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        lines.put("uncaught_exception", "error", exception=_text(kind, error, where))

    def uncaught_in_thread(found: threading.ExceptHookArgs) -> None:
        if not issubclass(found.exc_type, SystemExit):
            name = None if found.thread is None else found.thread.name
            text = _text(found.exc_type, found.exc_value, found.exc_traceback)
            lines.put("uncaught_exception", "error", thread=name, exception=text)

    def unraisable(found: Any) -> None:
        text = _text(found.exc_type, found.exc_value, found.exc_traceback)
        what = found.err_msg or "Exception ignored in"
        lines.put("ignored_exception", "error", problem=f"{what}: {found.object!r:.200}", exception=text)

    def warned(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        at = f"{filename}:{lineno}"
        lines.put("python_warning", "warning", kind=category.__name__, problem=str(message), at=at)

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, uncaught_in_thread, unraisable
    warnings.showwarning = warned  # type: ignore[assignment]  # it takes a file and a line, too


def real_stderr() -> TextIO:
    """Where the log writes its lines, which are objects already."""
    return sys.stderr.stream if isinstance(sys.stderr, JsonLines) else sys.stderr


def _text(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> str:
    return "".join(traceback.format_exception(kind, error, where)).rstrip()


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
