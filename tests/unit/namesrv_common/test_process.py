"""A program: its start, end and threads, what it prints and logs of text from outside, and its traces."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import io
import json
import logging
import re
import resource
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from namesrv.server.server import run_background
from namesrv_common.printable import UNPRINTABLE, print_error, printable_json
from namesrv_common.process import logs
from namesrv_common.process.logs import LogFormat, configure_logs
from namesrv_common.process.program import FOR_OTHERS, MOST, run_program, without_others
from namesrv_common.process.settings_cli import exit_with
from namesrv_common.process.shutdown import (
    DaemonExecutor,
    LoopThread,
    in_daemon_thread,
    run_blocking_step,
    run_step,
)
from namesrv_common.server.metrics_http import are_traces_wanted, open_telemetry
from namesrv_common.version import __version__
from tests.support.hostile.server import HOSTILE, unescaped
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually


def test_calls_before_the_end_are_made_in_named_threads_and_others_refused() -> None:
    executor = DaemonExecutor(2, "worker")
    divided, failed = executor.submit(divmod, 7, 2), executor.submit(divmod, 7, 0)
    thread = executor.submit(threading.current_thread)
    executor.shutdown()
    assert divided.result(0) == (3, 1)
    assert isinstance(failed.exception(0), ZeroDivisionError)
    assert thread.result(0).name in {"worker_0", "worker_1"}
    assert thread.result(0).daemon, "a process ends although a call hangs"
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(sum, [])
    executor.shutdown()


@pytest.mark.parametrize(
    ("limit", "left"),
    [(65_536, 65_536 - FOR_OTHERS), (1_024, 768), (400, 300), (resource.RLIM_INFINITY, MOST - FOR_OTHERS)],
)
def test_some_are_for_others_than_connections(limit: int, left: int) -> None:
    assert without_others(limit) == left


async def hang() -> None:
    await asyncio.Event().wait()


async def ignore_cancellation() -> None:
    """Hangs until it is cancelled, and hangs again then."""
    try:
        await hang()
    except asyncio.CancelledError:
        await hang()


async def fail() -> None:
    raise ValueError("broken")


@pytest.mark.parametrize("is_last", [False, True])
def test_work_that_fails_in_a_loop_thread_is_logged_and_the_thread_ends(
    caplog: pytest.LogCaptureFixture, is_last: bool
) -> None:
    thread = LoopThread("test")
    thread.start()
    if not is_last:
        thread.begin(fail())
        thread.run(asyncio.sleep(0))
    thread.stop(fail() if is_last else asyncio.sleep(0))
    assert thread.is_over
    assert "ValueError: broken" in caplog.text
    thread.begin(late := hang())
    assert inspect.getcoroutinestate(late) == inspect.CORO_CLOSED


def test_steps_that_hang_or_fail_are_named_and_leave_time_but_no_thread() -> None:
    release, before = threading.Event(), {*threading.enumerate()}
    with capture_logs() as lines:
        asyncio.run(run_step("hanging", hang(), 0.01))
        asyncio.run(run_step("stubborn", ignore_cancellation(), 0.01))
        asyncio.run(run_step("disk", in_daemon_thread("disk", release.wait), 0.01))
        run_blocking_step("blocking", release.wait, 0.01)
        asyncio.run(run_step("failing", fail()))
        run_blocking_step("dividing", lambda: 1 // 0)
        asyncio.run(run_step("listener", asyncio.sleep(0)))
        run_blocking_step("listener", lambda: None)
    release.set()
    assert [(line["event"], line["step"], str(line.get("seconds") or line["exc_info"])) for line in lines] == [
        *(("shutdown_step_timed_out", step, "0.01") for step in ("hanging", "stubborn", "disk", "blocking")),
        ("shutdown_step_failed", "failing", "broken"),
        ("shutdown_step_failed", "dividing", "integer division or modulo by zero"),
    ]
    eventually(lambda: {*threading.enumerate()} <= before)


async def test_the_first_failure_of_background_work_ends_or_leaves_the_rest() -> None:
    fails = asyncio.Event()

    async def fail_later() -> None:
        await fails.wait()
        await fail()

    works = [asyncio.sleep(0), hang(), ignore_cancellation(), fail_later()]
    running = asyncio.create_task(run_background(asyncio.Event(), works, 0.01))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done(), "work that ends by itself ends nothing else"
    fails.set()
    with capture_logs() as lines, pytest.raises(BaseExceptionGroup) as caught:
        await running
    assert [str(error) for error in caught.value.exceptions] == ["broken"]
    (line,) = lines
    assert (line["event"], line["seconds"]) == ("shutdown_step_timed_out", 0.01)
    assert "ignore_cancellation" in line["step"]
    (stop := asyncio.Event()).set()
    with capture_logs() as lines:
        await run_background(stop, [hang()])
    assert lines == [], "the program stops"


MISSING = (
    "program: not_installed_here is missing; install the extra extra: pip install -e '.[extra]' in a clone, "
    f"or pip install './namesrv-{__version__}-py3-none-any.whl[extra]'\n"
)


@pytest.mark.parametrize(
    ("program", "error", "match", "told"),
    [
        ("import not_installed_here.part", SystemExit, "^2$", MISSING),
        ("def app(prog_name):\n    import not_installed_here\n", SystemExit, "^2$", MISSING),
        ("import namesrv_common.no_such_module", ModuleNotFoundError, r"namesrv_common\.no_such_module", ""),
        ("def app(prog_name):\n    open('/gone/file')\n", FileNotFoundError, "/gone/file", ""),
    ],
)
def test_a_missing_library_is_named_and_other_failures_are_defects(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    error: type[BaseException],
    match: str,
    told: str,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{tmp_path.name}.py").write_text(program)
    with pytest.raises(error, match=match):
        run_program("program", tmp_path.name, "extra")
    assert capsys.readouterr().err == told


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"OTEL_TRACES_SAMPLER": "always_on", "OTEL_METRICS_EXPORTER": "otlp"}, False),
        (ENDPOINT, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4317"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            True,
        ),
    ],
)
def test_traces_are_sent_where_their_exporter_or_an_endpoint_asks_for_it(environ: dict[str, str], wanted: bool) -> None:
    assert are_traces_wanted(environ) is wanted


def test_what_traces_need_and_what_is_wrong_with_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ValueError, match=r"a variable OTEL_... cannot be used"):
        open_telemetry("namesrv", ENDPOINT, traces_follow_callers=True)
    monkeypatch.delenv("OTEL_BSP_MAX_QUEUE_SIZE")
    monkeypatch.delitem(sys.modules, "namesrv_common.server.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ValueError, match=r"opentelemetry.sdk.trace is missing; install the extra otel: pip "):
        open_telemetry("namesrv", ENDPOINT, traces_follow_callers=True)


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


def fail_hostile() -> None:
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
            fail_hostile()
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
