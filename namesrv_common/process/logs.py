"""Structured logs that never block the program: a bounded queue, one writer thread, counted drops."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import logging.handlers
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

import structlog

from namesrv_common.printable import print_error, printable, printable_json

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

QUEUE_CAPACITY = 10_000
"""Log lines that wait for the writer at most. A flood of lines must not grow memory."""

MAX_SHOWN = 200
"""Characters that are shown of a line that could not be written."""

_OF_SEVERAL_LINES = ("exception", "stack")


class _BoundedQueueHandler(logging.handlers.QueueHandler):
    """Hands records to the writer thread; drops and counts them when the queue is full.

    The queue has no lock that Python code holds: a signal handler that logs may interrupt a line of the same thread.
    """

    def __init__(self, lines: queue.SimpleQueue[Any], log_format: LogFormat) -> None:
        super().__init__(lines)
        self._lines = lines
        self.log_format = log_format
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # the event dictionary is rendered by the writer thread, not here

    def enqueue(self, record: logging.LogRecord) -> None:
        room = QUEUE_CAPACITY - self._lines.qsize()
        if room < 1:  # a few more fit if several threads look at once
            self.dropped += 1
            return
        self._lines.put(record)
        if self.dropped and room > 1:
            dropped, self.dropped = self.dropped, 0
            logging.getLogger("namesrv_common.process.logs").warning("log_lines_dropped count=%d", dropped)


class _Writer(logging.StreamHandler[TextIO]):
    """Writes records. A record that cannot be written becomes a log line instead of a traceback."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is the library's
        error = sys.exception()
        if isinstance(error, OSError):
            return  # the reader of the log has left
        with contextlib.suppress(Exception):
            said: Any = record.msg
            event = said.get("event") if isinstance(said, dict) else said
            broken = (error, record.name, str(event)[:MAX_SHOWN])
            problem = logging.LogRecord(__name__, logging.ERROR, "", 0, "log_line_broken: %r, of %s: %s", broken, None)
            self.stream.write(self.format(problem) + self.terminator)
            self.flush()


def _printable(_logger: Any, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escapes what a value from outside could do to a terminal, or pass off as a log line.

    A traceback keeps its lines, but each is indented: none looks like a line of the log.
    """
    for key, value in event.items():
        if key in _OF_SEVERAL_LINES and isinstance(value, str):
            event[key] = "\n".join(f"  {printable(line)}" for line in value.split("\n"))
        elif isinstance(value, str):
            event[key] = printable(value)
    return event


def _log_uncaught() -> None:
    """Has exceptions that nobody catches and warnings logged, which Python writes as text of several lines."""
    log = logging.getLogger("python")

    def uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        log.error("uncaught_exception", exc_info=(kind, error, where))

    def uncaught_in_thread(found: threading.ExceptHookArgs) -> None:
        if found.exc_value is not None and not isinstance(found.exc_value, SystemExit):
            uncaught(found.exc_type, found.exc_value, found.exc_traceback)

    def ignored(found: Any) -> None:
        log.error("ignored_exception of %.200r", found.object, exc_info=found.exc_value)

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, uncaught_in_thread, ignored
    logging.captureWarnings(True)


def configure_logs(log_format: LogFormat, level: LogLevel) -> logging.handlers.QueueListener:
    """Sends all logs, the program's and the libraries', to standard error through one bounded queue.

    Args:
        log_format: ``text`` for a terminal, ``json`` for a machine: one object a line, also for warnings of Python and
            exceptions that nobody catches.

    Returns:
        The writer. Its ``stop`` writes what still waits; a program that ends as Python programs do need not call it.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    stream = sys.stderr
    finish: list[Any] = (
        # JSON as it is rendered escapes most of what is not printable, and the second the rest.
        [structlog.processors.JSONRenderer(), lambda _logger, _name, line: printable_json(line)]
        if log_format == "json"
        else [_printable, structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0)]
    )
    writer = _Writer(stream)
    writer.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish]
        )
    )
    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()  # the handler limits it
    listener = logging.handlers.QueueListener(lines, writer)
    # Spares each line the search for its source line, its thread and its process: a third of its cost. Python's logging
    # cookbook names these switches ("Optimization").
    logging._srcfile = None  # noqa: SLF001 - the only way, and a documented one
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    setattr(logging, "logAsyncioTasks", False)  # noqa: B010 - Python 3.11 has no such switch
    root = logging.getLogger()
    root.handlers[:] = [_BoundedQueueHandler(lines, log_format)]
    root.setLevel(level.upper())
    logging.getLogger("grpc").setLevel(max(logging.INFO, root.level))  # its debug lines come with every call
    if log_format == "json":
        _log_uncaught()
    listener.start()
    atexit.register(listener.stop)
    return listener


def report(program: str, text: str, event: str, level: str) -> None:
    """Writes a line to the person who started a program, at once and whatever the level of the log is.

    Once the log is JSON, the line is an object with the keys of a log line; otherwise it is text.
    """
    if not any(getattr(handler, "log_format", "text") == "json" for handler in logging.getLogger().handlers):
        print_error(program, text)
        return
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"program": program, "text": text, "event": event, "level": level, "timestamp": now}
    sys.stderr.write(printable_json(json.dumps(line)) + "\n")


# Log lines that peers cause: however many there are, few are written, and these say how many were not.

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RateLimitedLog:
    """Logs one event, in a flood only now and then. The next line has the suppressed number. Thread-safe."""

    event: str
    seconds: float
    """Time for which a line stands."""
    monotonic: Callable[[], float] = time.monotonic
    _: KW_ONLY
    burst: int = 1
    """Lines that may be logged at once after a silence of as many times ``seconds``."""
    level: int = logging.WARNING
    """Of the lines, as ``logging`` counts levels."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _next_at: float = field(default=float("-inf"), init=False)
    _not_told: int = field(default=0, init=False)

    def log(self, **fields: Any) -> None:
        now = self.monotonic()
        with self._lock:
            if now < self._next_at - self.seconds * (self.burst - 1):
                self._not_told += 1
                return
            not_told, self._not_told = self._not_told, 0
            self._next_at = max(self._next_at, now) + self.seconds
        _log.log(self.level, self.event, **fields, not_told=not_told)
