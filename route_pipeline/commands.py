"""The commands of the program ``route-pipeline``."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from groundwork.command_line import LoggingCommand, version_option
from groundwork.endpoints import Endpoint, parse_endpoints
from groundwork.json_lines import LogFormat, tell, write_json_lines
from groundwork.logs import configure_logs
from groundwork.terminal import TableConsole
from route_pipeline import tables
from route_pipeline.java import JavaNotFoundError
from route_pipeline.log.compaction import GRACE, CompactionError, compact
from route_pipeline.log.delta_mirror import DeltaMirror
from route_pipeline.log.export import export
from route_pipeline.log.history import history
from route_pipeline.log.ingest import Ingester, IngestError
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.summaries import Summary
from route_pipeline.log.protocol.writer import ConflictError, ReplacedError
from route_pipeline.log.retention import drop_old
from route_pipeline.log.sinks import DELTA, PARQUET, SinkError, check_sink, session_settings
from route_pipeline.name_server import waiting_text
from route_pipeline.options import MAX_TIMEOUT_SECONDS, ReadRequest, Timeouts
from route_pipeline.queries import (
    INGEST_TIME,
    WALL_TIME,
    LatestState,
    clock_leads,
    divergence,
    divergence_causes,
    events_of,
    latest_state,
    route_at,
)
from route_pipeline.report_data import ReportData, collect_report
from route_pipeline.session import QUICK_START, SparkStartError, check_java, spark_session
from route_pipeline.spark_errors import SPARK_ERRORS, one_line
from route_pipeline.stores.store import StoreError, StoreUnavailableError
from route_pipeline.tables import print_report

# Options and arguments that several commands of ``route-pipeline`` share.

Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's master; else that of spark-submit, else local[*].")
]
Namesrv = Annotated[list[str], typer.Option(help="Name servers, 'host:port,host:port'; may be repeated.")]
Out = Annotated[
    str,
    typer.Option(
        metavar="LOG", help="Path or URL of the log: file:, s3://, gs://, abfss://, hdfs://. Made if need be."
    ),
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, max=MAX_TIMEOUT_SECONDS, help="For one stream of one name server.")
]
Option = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of the data source, such as onCompacted=resync; repeatable."),
]
Sink = Annotated[
    str, typer.Option(metavar="FORMAT", help="parquet; or delta: besides, LOG/delta is the log as a Delta table.")
]
Jars = Annotated[
    str | None, typer.Option(metavar="FILE,FILE", help="Delta Lake, if Spark is not to fetch it from Maven Central.")
]
LOG_FORMAT_VARIABLE = "ROUTE_PIPELINE_LOG_FORMAT"
Lines = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar=LOG_FORMAT_VARIABLE,
        help="text, or json: a line is an object. Spark's own lines are as its log4j2.properties say.",
    ),
]
Log = Annotated[str, typer.Argument(metavar="LOG", help="Path or URL that ingest wrote to.")]


# A loop that does something every so often, and again soon if it failed; forever.

FIRST_RETRY_SECONDS = 2.0
"""Longest wait before failed work is tried again; it doubles with each failure and is shortened at random."""
SHORTEST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
"""Longest wait of all: the name servers have been away for minutes by then."""


def repeat(
    work: Callable[[], None],
    seconds: float,
    failures: tuple[type[Exception], ...],
    on_failure: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Works until it is interrupted, or fails with something else.

    Args:
        seconds: Time from the start of one work to the start of the next; at once, if it took longer.
        failures: Errors that may pass by themselves: the work is then tried again, with growing pauses.
        on_failure: Told of each of these, in a line.
    """

    def tell(state: RetryCallState) -> None:
        assert state.outcome is not None
        on_failure(f"{state.outcome.exception()} (trying again in {state.upcoming_sleep:.1f} s)")

    until_done = Retrying(
        retry=retry_if_exception_type(failures),
        wait=wait_random_exponential(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, min=SHORTEST_RETRY_SECONDS),
        before_sleep=tell,
        sleep=sleep,
    )
    while True:
        started = clock()
        until_done(work)
        sleep(max(0.0, started + seconds - clock()))


# The commands of the program ``route-pipeline``.

DEFAULT_TIMEOUT = Timeouts().total
EXIT_FAILED = 1
"""Exit code when the work could not be done, as with a name server that cannot be reached."""
EXIT_BAD_INPUT = 2
"""Exit code when the command line is wrong, or the machine lacks something: nothing was tried."""

_WAS_TRIED = (IngestError, CompactionError, StoreUnavailableError, ConflictError, ReplacedError)

WIDTH_WITHOUT_TERMINAL = 140
"""Columns of a report that goes to a file or a pipe."""

app = typer.Typer(
    help="The routes of name servers, and every change of them, as a Parquet log; and questions about it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    app(prog_name="route-pipeline")


@app.callback()
def _program(*, version: Annotated[bool, version_option("route-pipeline")] = False) -> None:
    pass


class _Unattended(LoggingCommand):
    variable = LOG_FORMAT_VARIABLE


@app.command("ingest", cls=_Unattended)
def ingest_command(
    namesrv: Namesrv,
    out: Out,
    *,
    timeout: Timeout = DEFAULT_TIMEOUT,
    option: Option = None,
    restart: Annotated[bool, typer.Option(help="Forget how far was read, and begin with a snapshot.")] = False,
    sink: Sink = PARQUET,
    jars: Jars = None,
    master: Master = None,
    log_format: Lines = "text",
) -> None:
    """Append what changed since the last ingest; the first one begins with a snapshot."""
    _log_as(log_format)
    endpoints = _endpoints(namesrv)
    options = _options(option, endpoints, timeout)
    with _failures():
        check_sink(sink)
        check_java()
        log = _create(out)
        with _spark(master, {**QUICK_START, **session_settings(sink, jars)}) as spark:
            _say(f"reading {', '.join(map(str, endpoints))} ...")
            mirror = DeltaMirror(spark, log) if sink == DELTA else None
            ingester = Ingester(spark, endpoints, log, options, on_batch=_say_batch, on_wait=_say_wait, new_run=restart)
            result = ingester.once()
            if mirror is not None:
                mirror.catch_up()
    _say(f"{result.rows:,} rows appended to {log.url}, {result.quarantined:,} put aside, run {result.run_id}")


@app.command("follow", cls=_Unattended)
def follow_command(
    namesrv: Namesrv,
    out: Out,
    *,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=86_400, help="Time from one batch to the next.")
    ] = 60,
    timeout: Timeout = DEFAULT_TIMEOUT,
    option: Option = None,
    sink: Sink = PARQUET,
    jars: Jars = None,
    master: Master = None,
    log_format: Lines = "text",
) -> None:
    """Append what changes, every so often, until interrupted."""
    _log_as(log_format)
    endpoints = _endpoints(namesrv)
    options = _options(option, endpoints, timeout)
    with _failures():
        check_sink(sink)
        check_java()
        log = _create(out)
        with _spark(master, session_settings(sink, jars)) as spark:
            _say(f"following {', '.join(map(str, endpoints))} every {every:g} s; end it with Ctrl-C")
            mirror = DeltaMirror(spark, log) if sink == DELTA else None
            ingester = Ingester(spark, endpoints, log, options, on_batch=_say_batch, on_wait=_say_wait, follows=True)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # each batch reads certificates and tokens anyway

            def ingest_once() -> None:
                ingester.once()
                if mirror is not None:
                    mirror.catch_up()

            repeat(ingest_once, every, (IngestError, SinkError, StoreUnavailableError), _warn)


@app.command("report")
def report_command(
    log_url: Log,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with plots over time (needs matplotlib).")
    ] = None,
    master: Master = None,
) -> None:
    """Print what is known of each name server, and where they disagree."""
    page = None if html is None else _html_report()
    with _history(log_url, master) as (log, changes, computed):
        versions = computed.cache()
        latest = latest_state(log.state(), changes, versions)
        if html is not None and page is not None:
            _say("computing the plots ...")
            html.write_text(page(latest, collect_report(changes, versions)), encoding="utf-8")
    print_report(latest, _console())


@app.command("as-of")
def as_of_command(
    log_url: Log,
    at: Annotated[str, typer.Argument(metavar="TIME", help="ISO 8601, such as 2026-11-21T10:00:00; UTC if not said.")],
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    master: Master = None,
) -> None:
    """Print what a topic's route was at a time."""
    moment = _moment(at)
    with _history(log_url, master) as (_, _, versions):
        routes = route_at(versions, topic, moment)
    tables.print_routes(_console(), topic, moment, routes)


@app.command("who-changed")
def who_changed_command(
    log_url: Log,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    master: Master = None,
) -> None:
    """Print what happened to a topic and to the broker groups that had queues of it, and why."""
    with _history(log_url, master) as (_, _, versions):
        events = events_of(versions, topic)
    tables.print_events(_console(), topic, events)


@app.command("divergence")
def divergence_command(
    log_url: Log,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most disagreements shown of each kind.")] = 20,
    master: Master = None,
) -> None:
    """Print where name servers disagreed: by broker and cause first, then each, since when, and for how long."""
    with _history(log_url, master) as (_, changes, computed):
        versions = computed.cache()
        leads = clock_leads(changes).orderBy("namesrv").collect()
        found = {by: divergence(changes, versions, by).cache() for by in (WALL_TIME, INGEST_TIME)}
        causes = {by: divergence_causes(changes, versions, rows, by) for by, rows in found.items()}
        tables.print_causes(_console(), causes, limit)
        tables.print_divergence(_console(), found, leads, limit)


@app.command("compact", cls=_Unattended)
def compact_command(
    log_url: Log,
    keep_days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Days before today of which every change is kept; else all.")
    ] = None,
    grace_hours: Annotated[
        float, typer.Option(min=0, max=8_760, help="How long files stay that were replaced, for readers under way.")
    ] = GRACE.total_seconds() / 3600,
    master: Master = None,
    log_format: Lines = "text",
) -> None:
    """Put small files together, drop changes that are too old, and delete files that are no longer of the log."""
    _log_as(log_format)
    dropped: tuple[str, ...] = ()
    with _failures():
        log = RouteLog.open(log_url)
        if keep_days is not None:
            log.check_files(log.state())
            check_java()
            with _spark(master, {}) as spark:
                dropped = drop_old(spark, log, datetime.now(UTC).date(), keep_days)
        done = compact(log, timedelta(hours=grace_hours))
    _say(
        f"{len(done.days)} days compacted, {len(dropped)} reduced to what outlasted them: "
        f"{done.files_before:,} files before, {done.files_after:,} after; {done.deleted:,} old files deleted"
    )


@app.command("export")
def export_command(
    log_url: Log,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Path or URL of a place without files.")],
) -> None:
    """Copy the log as plain folders, TARGET/date=DATE, for programs that know nothing of its commits."""
    with _failures():
        count = export(RouteLog.open(log_url), target)
    _say(f"{count:,} files copied to {target}")


def _say_batch(summaries: list[Summary]) -> None:
    for summary in summaries:
        aside = f", {summary.quarantined:,} rows put aside" if summary.quarantined else ""
        gap = f"; MISSING: {summary.gap}" if summary.gap else ""
        at = f"revision {summary.revision:,} of epoch {summary.epoch}" if summary.epoch else "never reached"
        _say(f"{summary.namesrv}: {summary.read or 'nothing'}, {summary.rows:,} rows{aside}, now {at}{gap}")


def _say_wait(endpoint: Endpoint, namesrv: str) -> None:
    _say(f"waiting: {waiting_text(endpoint, namesrv)}")


def _endpoints(namesrv: list[str]) -> tuple[Endpoint, ...]:
    try:
        return parse_endpoints(namesrv)
    except ValueError as error:
        _exit_with(f"--namesrv: {error}", EXIT_BAD_INPUT)


def _options(option: list[str] | None, endpoints: tuple[Endpoint, ...], timeout: float) -> dict[str, str]:
    """Options of the data source, checked before Spark is started."""
    options = {"timeoutSeconds": f"{timeout:g}"}
    for text in option or ():
        name, equals, value = text.partition("=")
        if not equals:
            _exit_with(f"--option {text!r} is not NAME=VALUE", EXIT_BAD_INPUT)
        if name.lower() in ("endpoints", "table", "topics", "clusters", "columns"):
            _exit_with(f"--option {name}: the log is of everything, and the name servers are --namesrv", EXIT_BAD_INPUT)
        options[name] = value
    try:
        checked = CaseInsensitiveDict(options | {"endpoints": ",".join(map(str, endpoints))})
        ReadRequest.of_options(checked, streaming=True)
    except ValueError as error:
        _exit_with(f"--option: {error}", EXIT_BAD_INPUT)
    return options


def _html_report() -> Callable[[LatestState, ReportData], str]:
    """The maker of the page; matplotlib is loaded for it alone, because that takes a second."""
    try:
        module = importlib.import_module("route_pipeline.html_report")
    except ModuleNotFoundError as error:
        _exit_with(f"--html needs {error.name}: pip install matplotlib", EXIT_BAD_INPUT)
    maker: Callable[[LatestState, ReportData], str] = module.html_report
    return maker


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        _exit_with(f"TIME {text!r} is not a time such as 2026-11-21T10:00:00", EXIT_BAD_INPUT)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _create(out: str) -> RouteLog:
    """A log to write to. What is wrong with its commits is told before Spark takes its seconds to start."""
    log = RouteLog.create(out)
    log.state()
    return log


def _open(log_url: str) -> RouteLog:
    log = RouteLog.open(log_url)
    found = log.state()
    log.check_not_empty(found)
    log.check_files(found)  # before Spark takes its seconds to start
    if found.unknown_kinds:
        _warn(f"commits of a kind that this version does not know: {', '.join(sorted(found.unknown_kinds))}")
    check_java()
    return log


@contextmanager
def _spark(master: str | None, conf: Mapping[str, str] = QUICK_START) -> Iterator[SparkSession]:
    _say("starting Spark ...")
    with spark_session(master, conf) as spark:
        yield spark


@contextmanager
def _history(log_url: str, master: str | None) -> Iterator[tuple[RouteLog, DataFrame, DataFrame]]:
    with _failures():
        log = _open(log_url)
        with _spark(master) as spark:
            changes = read_changes(spark, log)
            yield log, changes, history(changes)


@contextmanager
def _failures() -> Iterator[None]:
    """Ends the program with one line for whatever can go wrong."""
    try:
        yield
    except _WAS_TRIED as error:
        _exit_with(str(error), EXIT_FAILED)
    except (JavaNotFoundError, SparkStartError, SinkError, StoreError) as error:
        _exit_with(str(error), EXIT_BAD_INPUT)
    except SPARK_ERRORS as error:
        _exit_with(one_line(error), EXIT_FAILED)
    except OSError as error:
        _exit_with(f"{error.filename}: {error.strerror}", EXIT_FAILED)
    except KeyboardInterrupt:
        _exit_with("interrupted; what was written stays", EXIT_FAILED)


def _console() -> TableConsole:
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    return TableConsole(width=width)


def _log_as(log_format: LogFormat) -> None:
    """Has all lines of this program and its libraries be objects, if they are to be JSON."""
    if log_format == "json":
        write_json_lines()
        configure_logs(log_format, "warning")


def _say(progress: str) -> None:
    """Progress goes to standard error: the report alone is the output."""
    tell("route-pipeline", progress, "progress", "info")


def _warn(problem: str) -> None:
    """What somebody should look at, although the program goes on."""
    tell("route-pipeline", problem, "problem", "warning")


def _exit_with(message: str, code: int) -> NoReturn:
    tell("route-pipeline", message, "failed", "error")
    raise typer.Exit(code)
