"""The commands of the program ``route-pipeline``."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from namesrv_common.endpoints import parse_endpoints
from namesrv_common.process.command_line import version_option
from namesrv_common.process.logs import LogFormat, configure_logs, report
from namesrv_common.process.terminal import TableConsole
from route_pipeline import tables
from route_pipeline.html_report import html_report
from route_pipeline.ingest import Appended, Ingester, ingest_options
from route_pipeline.log.place import LogError, Place, StoreError
from route_pipeline.log.route_log import ConflictError, RouteLog
from route_pipeline.name_server import NamesrvError
from route_pipeline.options import Options
from route_pipeline.questions import CLOCKS, Engine, Questions, questions, store_history, views_of
from route_pipeline.report_data import collect_charts, collect_report

Namesrv = Annotated[list[str], typer.Option(help="Name servers, 'host:port,host:port'; may be repeated.")]
Out = Annotated[
    str, typer.Option(metavar="LOG", help="Path or URL of the log: s3://, gs:// or abfss://. Made if need be.")
]
Option = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of the data source, such as onCompacted=resync; repeatable."),
]
Store = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option of the bucket's client, such as AWS_ENDPOINT_URL; repeatable. The environment has the others.",
    ),
]
LOG_FORMAT_VARIABLE = "ROUTE_PIPELINE_LOG_FORMAT"


def _log_as(log_format: LogFormat) -> LogFormat:
    """Has all lines of this program and its libraries be objects, if they are to be JSON."""
    if log_format == "json":
        configure_logs(log_format, "warning")
    else:
        logging.basicConfig(format="route-pipeline: %(message)s")
    return log_format


Lines = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", envvar=LOG_FORMAT_VARIABLE, callback=_log_as, help="text, or json: a line is an object."
    ),
]
Log = Annotated[str, typer.Argument(metavar="LOG", help="Path or URL that ingest wrote to.")]


SHORTEST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
"""Waits before failed work is tried again: they double with each failure, and are shortened at random."""


def repeat(
    work: Callable[[], object],
    seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Starts the work every so many seconds. After errors of name servers and stores it tries again, and says so."""

    def tell_failure(state: RetryCallState) -> None:
        assert state.outcome is not None
        _say(f"{state.outcome.exception()} (trying again in {state.upcoming_sleep:.1f} s)", "problem", "warning")

    until_done = Retrying(
        # Options were checked before: one that is wrong now, a ValueError, names a file that is renewed.
        retry=retry_if_exception_type((NamesrvError, StoreError, ValueError)),
        wait=wait_random_exponential(2, LONGEST_RETRY_SECONDS, min=SHORTEST_RETRY_SECONDS),
        before_sleep=tell_failure,
        sleep=sleep,
    )
    while True:
        started = clock()
        until_done(work)
        sleep(max(0.0, started + seconds - clock()))


EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
"""Exit codes: the work could not be done, or nothing was tried, because the command line or the log is wrong."""

app = typer.Typer(
    help="The routes of name servers, and every change of them, as a Delta table; and questions about it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _program(*, version: Annotated[bool, version_option("route-pipeline")] = False) -> None:
    pass


@app.command("ingest")
def ingest_command(
    namesrv: Namesrv,
    out: Out,
    *,
    option: Option = None,
    store: Store = None,
    restart: Annotated[bool, typer.Option(help="Forget how far was read, and begin with a snapshot.")] = False,
    _log_format: Lines = "text",
) -> None:
    """Append what changed since the last ingest; the first one begins with a snapshot."""
    options = _options(namesrv, option)
    with _failures():
        log = RouteLog(Place(out, _values(store, "--store")))
        batches = Ingester(options, log, restart=restart, on_batch=_say_batch).once()
    rows, aside = sum(one.rows for one in batches), sum(one.aside for one in batches)
    _say(f"{rows:,} rows appended to {log.place.url}, {aside:,} put aside")


@app.command("follow")
def follow_command(
    namesrv: Namesrv,
    out: Out,
    *,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=86_400, help="Time from one batch to the next.")
    ] = 60,
    option: Option = None,
    store: Store = None,
    _log_format: Lines = "text",
) -> None:
    """Append what changes, every so often, until interrupted."""
    options = _options(namesrv, option, follows=True)
    with _failures():
        log = RouteLog(Place(out, _values(store, "--store")))
        _say(f"following {', '.join(map(str, options.endpoints))} every {every:g} s; end it with Ctrl-C")
        ingester = Ingester(options, log, follows=True, on_batch=_say_batch)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # each batch reads certificates and tokens anyway
        repeat(ingester.once, every)


@app.command("report")
def report_command(
    log_url: Log,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with plots over time.")] = None,
    store: Store = None,
) -> None:
    """Print the state of each name server in the log, and their disagreements."""
    with _asked(log_url, store) as asked:
        data = collect_report(asked)
        if html is not None:
            html.write_text(html_report(data, collect_charts(asked)), encoding="utf-8")
    tables.print_report(data, _console())


@app.command("as-of")
def as_of_command(
    log_url: Log,
    at: Annotated[str, typer.Argument(metavar="TIME", help="ISO 8601, such as 2026-11-21T10:00:00; UTC if not said.")],
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    store: Store = None,
) -> None:
    """Print what a topic's route was at a time, or that it had none, or that the log does not know."""
    moment = _moment(at)
    with _asked(log_url, store) as asked:
        answers = asked.route_at(topic, moment)
    tables.print_routes(_console(), topic, moment, answers)


@app.command("who-changed")
def who_changed_command(
    log_url: Log, topic: Annotated[str, typer.Argument(help="Name of the topic.")], store: Store = None
) -> None:
    """Print what happened to a topic and to the broker groups that had queues of it, and why."""
    with _asked(log_url, store) as asked:
        events = asked.who_changed(topic)
    tables.print_events(_console(), topic, events)


@app.command("divergence")
def divergence_command(
    log_url: Log,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most disagreements shown of each kind.")] = 20,
    min_seconds: Annotated[
        float, typer.Option(min=0, help="Leave out what was over sooner: name servers hear of a broker one by one.")
    ] = 5,
    store: Store = None,
) -> None:
    """Print where name servers disagreed: by broker and cause first, then each, since when, and for how long."""
    with _asked(log_url, store) as asked:
        found = {clock: asked.divergence(clock, min_seconds) for clock in CLOCKS}
        leads = asked.clock_leads()
    tables.print_leads(_console(), leads)
    tables.print_divergence(_console(), found, limit, min_seconds)


@app.command("maintain")
def maintain_command(
    log_url: Log,
    keep_days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Days before today that stay in the log; else all.")
    ] = None,
    grace_hours: Annotated[
        float, typer.Option(min=1, max=8_760, help="How long files stay that were replaced, for readers under way.")
    ] = 24,
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Also store the view history as the Delta table LOG/history.")
    ] = False,
    store: Store = None,
    _log_format: Lines = "text",
) -> None:
    """Put small files together, drop days that are too old, and delete files that are no longer of the log."""
    with _failures():
        place = Place(log_url, _values(store, "--store"))
        place.files(place.open())  # a file that is missing is told before anything is replaced
        before, after, deleted = RouteLog(place).maintain(keep_days, timedelta(hours=grace_hours))
        versions = f"; {store_history(place):,} versions in {place.url}/history" if history else ""
    _say(f"{before:,} files before, {after:,} after; {deleted:,} old files deleted{versions}")


@app.command("sql")
def sql_command(log_url: Log, engine: Annotated[Engine, typer.Option(help="Whose SQL it is.")] = "duckdb") -> None:
    """Print the views and route_at for an engine that reads the table by itself."""
    with _failures():
        table = Place(log_url).table
    sys.stdout.write(views_of(table, engine))


def _say_batch(batch: Appended) -> None:
    aside = f", {batch.aside:,} put aside" if batch.aside else ""
    _say(f"batch {batch.batch}: {batch.rows:,} rows{aside}; {'; '.join(batch.reads)}")


def _values(given: list[str] | None, option: str) -> dict[str, str]:
    values = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals:
            _exit_with(f"{option} {text!r} is not NAME=VALUE", EXIT_BAD_INPUT)
        values[name] = value
    return values


def _options(namesrv: list[str], option: list[str] | None, *, follows: bool = False) -> Options:
    """The options of the ingest, checked before anything is read."""
    given = _values(option, "--option")
    for name in given:
        if name.lower() in ("endpoints", "table", "topics", "clusters"):
            _exit_with(f"--option {name}: the log is of everything, and the name servers are --namesrv", EXIT_BAD_INPUT)
    try:
        endpoints = parse_endpoints(namesrv)
    except ValueError as error:
        _exit_with(f"--namesrv: {error}", EXIT_BAD_INPUT)
    try:
        return ingest_options(endpoints, given, follows=follows)
    except ValueError as error:
        _exit_with(f"--option: {error}", EXIT_BAD_INPUT)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        _exit_with(f"TIME {text!r} is not a time such as 2026-11-21T10:00:00", EXIT_BAD_INPUT)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@contextmanager
def _asked(log_url: str, store: list[str] | None) -> Iterator[Questions]:
    with _failures(), questions(Place(log_url, _values(store, "--store"))) as asked:
        yield asked


@contextmanager
def _failures() -> Iterator[None]:
    """Ends the program with one line for whatever can go wrong."""
    try:
        yield
    except (NamesrvError, StoreError, ConflictError, ValueError) as error:
        _exit_with(str(error), EXIT_FAILED)
    except LogError as error:
        _exit_with(str(error), EXIT_BAD_INPUT)
    except OSError as error:
        _exit_with(f"{error.filename}: {error.strerror}", EXIT_FAILED)
    except KeyboardInterrupt:
        _exit_with("interrupted; what was written stays", EXIT_FAILED)


def _console() -> TableConsole:
    """A console as wide as the terminal; 140 columns for a file or a pipe."""
    return TableConsole(width=None if sys.stdout.isatty() else 140)


def _say(text: str, event: str = "progress", level: str = "info") -> None:
    """Writes a line to standard error: the answer alone is the output."""
    report("route-pipeline", text, event, level)


def _exit_with(message: str, code: int) -> NoReturn:
    _say(message, "failed", "error")
    raise typer.Exit(code)
