"""Text from outside is shown and does nothing: in tables, JSON, logs and errors."""

from __future__ import annotations

import atexit
import io
import json
import logging
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog

from namesrv_common.printable import UNPRINTABLE, print_error, printable_json
from namesrv_common.process import logs
from namesrv_common.process.logs import LogFormat, configure_logs
from namesrv_common.process.settings_cli import exit_with
from tests.support.hostile.server import HOSTILE, unescaped
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually

BIDI = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}


def test_every_control_separator_and_bidirectional_character_is_escaped_and_letters_are_not() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        kind = unicodedata.category(character)
        if kind in {"Cc", "Zl", "Zp", "Cs"} or unicodedata.bidirectional(character) in BIDI:
            assert UNPRINTABLE.match(character), hex(code)
        elif kind[0] in "LNPSM" or character == " ":
            assert not UNPRINTABLE.match(character), hex(code)


def test_programs_read_what_was_written_whatever_it_is() -> None:
    text = HOSTILE + "".join(map(chr, range(0x300))) + "\U000e0001\u2028\ufeff漢"
    shown = printable_json(json.dumps({"a": text}, ensure_ascii=False, indent=2))
    assert json.loads(shown) == {"a": text}
    assert not unescaped(shown)


def test_an_error_is_one_line_whose_escapes_name_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("nsctl", "a\nb\r\t\x1b\x9b\u202e\U000e0001\ud800 ä 漢 \\")
    with pytest.raises(SystemExit):
        exit_with("namesrv", HOSTILE)
    first, second, end = capsys.readouterr().err.split("\n")
    assert first == "nsctl: a\\nb\\r\\t\\x1b\\x9b\\u202e\\U000e0001\\ud800 ä 漢 \\"
    assert second.startswith("namesrv: ")
    assert not unescaped(second)
    assert end == ""


@contextmanager
def _logging(
    log_format: LogFormat, monkeypatch: pytest.MonkeyPatch, err: io.StringIO | None = None
) -> Iterator[io.StringIO]:
    root, err = logging.getLogger(), err or io.StringIO()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", err)
    for module, hook in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
        monkeypatch.setattr(module, hook, getattr(module, hook))
    listener = configure_logs(log_format, "info")
    try:
        yield err
        listener.stop()
    finally:
        atexit.unregister(listener.stop)
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


def _fail() -> None:
    raise ValueError(HOSTILE)


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_log_line_is_one_line_even_of_a_traceback_or_a_broken_one(
    log_format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _logging(log_format, monkeypatch) as err:
        structlog.get_logger("x").warning("event", peer=HOSTILE, names=[HOSTILE])
        logging.getLogger("library").warning("a library says %s", HOSTILE)
        try:
            _fail()
        except ValueError:
            structlog.get_logger("x").exception("failed")
        structlog.get_logger("ours").warning("broker_gone", peer=Broken())
        logging.getLogger("library").warning("of two, %d and %d", 1)  # noqa: PLE1206 - that is what is wrong with it
    assert not unescaped(err.getvalue())
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("  ")]
    if log_format == "json":
        told = [json.loads(line) for line in lines]
        assert [line["level"] for line in told] == ["warning", "warning", "error", "error", "error"]
        assert told[0]["peer"] == HOSTILE, "programs read what was written"
    _, _, _, ours, of_library = lines
    assert "log_line_broken: RuntimeError('no text'), of ours: broker_gone" in ours
    assert "of library: of two, %d and %d" in of_library


def test_lines_beyond_the_bound_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the reader of the log takes nothing."""
    begun, reads = list[str](), threading.Semaphore(0)

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            begun.append(text)
            assert reads.acquire(timeout=TIMEOUT)
            return super().write(text)

    monkeypatch.setattr(logs, "QUEUE_CAPACITY", 3)
    with _logging("text", monkeypatch, Slow()) as err:
        log = structlog.get_logger("x")
        log.warning("event", number=0)
        eventually(lambda: len(begun) == 1)
        for number in range(1, 10):
            log.warning("event", number=number)
        reads.release()
        eventually(lambda: len(begun) == 2)
        log.warning("event", number=10)  # there is room for it, and none to say what was dropped
        reads.release(100)
        eventually(lambda: "number=2" in err.getvalue())
        for _ in range(2):
            log.warning("last")
    assert re.findall(r"number=(\d+)", err.getvalue()) == ["0", "1", "2", "3", "10"]
    assert re.findall(r"log_lines_dropped count=(\d+)", err.getvalue()) == ["6"]
