"""The start and the end of a program, its threads, and variables OTEL_... that export traces."""

from __future__ import annotations

import asyncio
import inspect
import resource
import sys
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from namesrv.server.server import run_background
from namesrv_common.process.program import FOR_OTHERS, MOST, run_program, without_others
from namesrv_common.process.shutdown import (
    DaemonExecutor,
    LoopThread,
    in_daemon_thread,
    run_blocking_step,
    run_step,
)
from namesrv_common.server.metrics_http import are_traces_wanted, open_telemetry
from namesrv_common.version import __version__
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


async def test_background_work_ends_without_a_word_when_the_program_stops() -> None:
    (stop := asyncio.Event()).set()
    with capture_logs() as lines:
        await run_background(stop, [hang()])
    assert lines == []


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


def test_a_variable_that_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ValueError, match=r"a variable OTEL_... cannot be used"):
        open_telemetry("namesrv", ENDPOINT, traces_follow_callers=True)


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "namesrv_common.server.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ValueError, match=r"opentelemetry.sdk.trace is missing; install the extra otel: pip "):
        open_telemetry("namesrv", ENDPOINT, traces_follow_callers=True)
