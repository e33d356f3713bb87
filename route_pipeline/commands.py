"""The commands of the program ``route-pipeline``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pyspark.sql import DataFrame, SparkSession

from groundwork.command_line import version_option
from groundwork.endpoints import Endpoint, parse_endpoints
from groundwork.printable import say
from groundwork.terminal import TableConsole
from route_pipeline.java import JavaNotFoundError
from route_pipeline.log.change_log import read_changes
from route_pipeline.log.compaction import CompactionError, compact
from route_pipeline.log.delta_mirror import DeltaMirror
from route_pipeline.log.history import history
from route_pipeline.log.ingest import IngestError, OnBatch, follow, ingest
from route_pipeline.log.sinks import DELTA, PARQUET, SinkError, check_sink, session_settings
from route_pipeline.log.store import RouteStore, StoreError
from route_pipeline.log.summaries import Summary
from route_pipeline.repetition import repeat
from route_pipeline.reports import tables
from route_pipeline.reports.comparison import Comparison, ComparisonError, compare_latest
from route_pipeline.reports.data import ReportData, collect_report
from route_pipeline.reports.divergence import INGEST_TIME, WALL_TIME, clock_leads, divergence
from route_pipeline.reports.questions import events_of, route_at
from route_pipeline.reports.report import print_report
from route_pipeline.session import QUICK_START, SparkStartError, check_java, spark_session
from route_pipeline.source.connection import Timeouts
from route_pipeline.source.options import MAX_TIMEOUT_SECONDS, ReadRequest
from route_pipeline.spark_errors import SPARK_ERRORS, one_line

DEFAULT_TIMEOUT = Timeouts().total
EXIT_FAILED = 1
"""Exit code when the work could not be done, as with a name server that cannot be reached."""
EXIT_BAD_INPUT = 2
"""Exit code when the command line is wrong, or the machine lacks something: nothing was tried."""

WIDTH_WITHOUT_TERMINAL = 140
"""Columns of a report that goes to a file or a pipe."""

app = typer.Typer(
    help="The routes of name servers, and every change of them, as a Parquet log; and questions about it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's master; else that of spark-submit, else local[*].")
]
Namesrv = Annotated[list[str], typer.Option(help="Name servers, 'host:port,host:port'; may be repeated.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the log; made if it is not there.")]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, max=MAX_TIMEOUT_SECONDS, help="For one stream of one name server.")
]
Option = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of the data source, such as onCompacted=resync; repeatable."),
]
Sink = Annotated[
    str, typer.Option(metavar="FORMAT", help="parquet; or delta: besides, DIR/delta is the log as a Delta table.")
]
Jars = Annotated[
    str | None, typer.Option(metavar="FILE,FILE", help="Delta Lake, if Spark is not to fetch it from Maven Central.")
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that ingest wrote to.")]


@app.callback()
def _program(*, version: Annotated[bool, version_option("route-pipeline")] = False) -> None:
    pass


@app.command("ingest")
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
) -> None:
    """Append what changed since the last ingest; the first one begins with a snapshot."""
    endpoints = _endpoints(namesrv)
    options = _options(option, endpoints, timeout)
    with _failures():
        check_sink(sink)
        check_java()
        store = RouteStore.create(out)
        with _spark(master, {**QUICK_START, **session_settings(sink, jars)}) as spark:
            _say(f"reading {', '.join(map(str, endpoints))} ...")
            mirror = DeltaMirror(spark, store) if sink == DELTA else None
            result = ingest(spark, endpoints, store, options, on_batch=_say_batch, new_run=restart)
            _catch_up(mirror)
    _say(f"{result.rows:,} rows appended to {out}, {result.quarantined:,} put aside, run {result.run_id}")


@app.command("follow")
def follow_command(
    namesrv: Namesrv,
    out: Out,
    *,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=86_400, help="Time from one batch to the next.")
    ] = 60,
    timeout: Timeout = DEFAULT_TIMEOUT,
    option: Option = None,
    continuous: Annotated[
        bool, typer.Option(help="Keep one query running, instead of one that ends for every batch.")
    ] = False,
    sink: Sink = PARQUET,
    jars: Jars = None,
    master: Master = None,
) -> None:
    """Append what changes, every so often, until interrupted."""
    endpoints = _endpoints(namesrv)
    options = _options(option, endpoints, timeout)
    if continuous and sink != PARQUET:
        _exit_with(f"--sink {sink} follows whole runs: leave --continuous out", EXIT_BAD_INPUT)
    with _failures():
        check_sink(sink)
        check_java()
        store = RouteStore.create(out)
        with _spark(master, session_settings(sink, jars)) as spark:
            _say(f"following {', '.join(map(str, endpoints))} every {every:g} s; end it with Ctrl-C")
            mirror = DeltaMirror(spark, store) if sink == DELTA else None

            def ingest_once() -> None:
                ingest(spark, endpoints, store, options, on_batch=_say_batch)
                _catch_up(mirror)

            def follow_on() -> None:
                follow_until_it_fails(partial(follow, spark, endpoints, store, every, options), _say_batch, _say)

            repeat(follow_on if continuous else ingest_once, every, (IngestError, SinkError), _say)


def follow_until_it_fails(follow: Callable[..., None], on_batch: OnBatch, on_failure: Callable[[str], None]) -> None:
    """Follows with one query. One that has read a batch and then failed is to be followed by another one at once.

    Raises:
        IngestError: It failed before it had read anything.
    """
    has_read = False

    def note(summaries: list[Summary]) -> None:
        nonlocal has_read
        has_read = True
        on_batch(summaries)

    try:
        follow(on_batch=note)
    except IngestError as error:
        if not has_read:
            raise
        on_failure(f"{error} (trying again)")


@app.command("report")
def report_command(
    folder: Folder,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with plots over time (needs matplotlib).")
    ] = None,
    master: Master = None,
) -> None:
    """Print what is known of each name server, and where the name servers differ."""
    page = None if html is None else _html_report()
    with _failures():
        store = _open(folder)
        with _spark(master) as spark:
            _say(f"comparing the name servers of {folder} ...")
            comparison = compare_latest(spark, store)
            if html is not None and page is not None:
                _say("computing the plots ...")
                changes = read_changes(spark, store)
                data = collect_report(changes, history(changes).cache())
                html.write_text(page(comparison, data), encoding="utf-8")
    print_report(comparison, _console())


@app.command("history")
def history_command(folder: Folder, master: Master = None) -> None:
    """Write every version of every row as the table DIR/history (SCD type 2)."""
    with _history(folder, master) as (store, _, versions):
        count = tables.write_history(store, versions)
        _say(f"wrote {count:,} versions to {store.history}")


@app.command("as-of")
def as_of_command(
    folder: Folder,
    at: Annotated[str, typer.Argument(metavar="TIME", help="ISO 8601, such as 2026-11-21T10:00:00; UTC if not said.")],
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    master: Master = None,
) -> None:
    """Print what a topic's route was at a time."""
    moment = _moment(at)
    with _history(folder, master) as (_, _, versions):
        routes = route_at(versions, topic, moment)
    tables.print_routes(_console(), topic, moment, routes)


@app.command("who-changed")
def who_changed_command(
    folder: Folder,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    master: Master = None,
) -> None:
    """Print what happened to a topic and to the broker groups that had queues of it, and why."""
    with _history(folder, master) as (_, _, versions):
        events = events_of(versions, topic)
    tables.print_events(_console(), topic, events)


@app.command("divergence")
def divergence_command(
    folder: Folder,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most disagreements shown of each kind.")] = 20,
    master: Master = None,
) -> None:
    """Print where name servers disagreed, since when, and for how long."""
    with _history(folder, master) as (_, changes, computed):
        versions = computed.cache()
        leads = clock_leads(changes).orderBy("namesrv").collect()
        found = {by: divergence(changes, versions, by) for by in (WALL_TIME, INGEST_TIME)}
        tables.print_divergence(_console(), found, leads, limit)


@app.command("compact")
def compact_command(
    folder: Folder,
    keep_days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Days before today of which every change is kept; else all.")
    ] = None,
    master: Master = None,
) -> None:
    """Put the files of days that are over together, and drop changes that are too old."""
    with _failures():
        store = _open(folder)
        with _spark(master, {}) as spark:
            done = compact(spark, store, datetime.now(UTC).date(), keep_days)
    _say(
        f"{len(done.days)} days compacted, {len(done.dropped_days)} reduced to what outlasted them: "
        f"{done.files_before:,} files before, {done.files_after:,} after"
    )


def _catch_up(mirror: DeltaMirror | None) -> None:
    if mirror is not None:
        mirror.catch_up()


def _say_batch(summaries: list[Summary]) -> None:
    for summary in summaries:
        aside = f", {summary.quarantined:,} rows put aside" if summary.quarantined else ""
        gap = f"; MISSING: {summary.gap}" if summary.gap else ""
        at = f"revision {summary.revision:,} of epoch {summary.epoch}" if summary.epoch else "never reached"
        _say(f"{summary.namesrv}: {summary.read or 'nothing'}, {summary.rows:,} rows{aside}, now {at}{gap}")


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
        if name.lower() in ("endpoints", "table", "topics", "clusters"):
            _exit_with(f"--option {name}: the log is of everything, and the name servers are --namesrv", EXIT_BAD_INPUT)
        options[name] = value
    try:
        ReadRequest.of_options(options | {"endpoints": ",".join(map(str, endpoints))}, streaming=True)
    except ValueError as error:
        _exit_with(f"--option: {error}", EXIT_BAD_INPUT)
    return options


def _html_report() -> Callable[[Comparison, ReportData], str]:
    """The maker of the page; matplotlib is loaded for it alone, because that takes a second."""
    try:
        module = importlib.import_module("route_pipeline.reports.html")
    except ModuleNotFoundError as error:
        _exit_with(f"--html needs {error.name}: pip install matplotlib", EXIT_BAD_INPUT)
    maker: Callable[[Comparison, ReportData], str] = module.html_report
    return maker


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        _exit_with(f"TIME {text!r} is not a time such as 2026-11-21T10:00:00", EXIT_BAD_INPUT)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _open(folder: Path) -> RouteStore:
    store = RouteStore.open(folder)
    store.check_not_empty()
    check_java()
    return store


@contextmanager
def _spark(master: str | None, conf: Mapping[str, str] = QUICK_START) -> Iterator[SparkSession]:
    _say("starting Spark ...")
    with spark_session(master, conf) as spark:
        yield spark


@contextmanager
def _history(folder: Path, master: str | None) -> Iterator[tuple[RouteStore, DataFrame, DataFrame]]:
    """The store, its log, and the history of it."""
    with _failures():
        store = _open(folder)
        with _spark(master) as spark:
            changes = read_changes(spark, store)
            yield store, changes, history(changes)


@contextmanager
def _failures() -> Iterator[None]:
    """Ends the program with one line for whatever can go wrong."""
    try:
        yield
    except (JavaNotFoundError, SparkStartError, SinkError, StoreError) as error:
        _exit_with(str(error), EXIT_BAD_INPUT)
    except (IngestError, ComparisonError, CompactionError) as error:
        _exit_with(str(error), EXIT_FAILED)
    except SPARK_ERRORS as error:
        _exit_with(one_line(error), EXIT_FAILED)
    except OSError as error:
        _exit_with(f"{error.filename}: {error.strerror}", EXIT_FAILED)
    except KeyboardInterrupt:
        _exit_with("interrupted; what was written stays", EXIT_FAILED)


def _console() -> TableConsole:
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    return TableConsole(width=width)


def _say(progress: str) -> None:
    """Progress goes to standard error: the report alone is the output."""
    say("route-pipeline", progress)


def _exit_with(message: str, code: int) -> NoReturn:
    say("route-pipeline", message)
    raise typer.Exit(code)
