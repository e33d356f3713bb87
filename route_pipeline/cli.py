"""The program ``route-pipeline``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from groundwork.endpoints import parse_endpoints
from groundwork.version import __version__
from route_pipeline.comparison import ComparisonError, compare_latest
from route_pipeline.data_source import MAX_TIMEOUT_SECONDS
from route_pipeline.ingest import IngestError, ingest
from route_pipeline.java import JavaNotFoundError, ensure_java_home
from route_pipeline.report import print_report
from route_pipeline.session import DEFAULT_MASTER, SparkStartError, spark_session
from route_pipeline.snapshot_reader import Timeouts
from route_pipeline.store import RouteStore, StoreError

EXIT_FAILED = 1
"""Exit code when the work could not be done, as with a name server that cannot be reached."""
EXIT_BAD_INPUT = 2
"""Exit code when what was asked for makes no sense, or the machine lacks something: nothing was tried."""

WIDTH_WITHOUT_TERMINAL = 140
"""Columns of a report that goes to a file or a pipe."""

app = typer.Typer(
    help="Route snapshots of name servers into Parquet tables, with Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Master = Annotated[str, typer.Option(help="Spark's master URL.")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"route-pipeline {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    pass


@app.command("ingest")
def ingest_command(
    namesrv: Annotated[list[str], typer.Option(help="Name servers, 'host:port,host:port'; may be repeated.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the tables; made if it is not there.")],
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, max=MAX_TIMEOUT_SECONDS, help="For the snapshot of one name server."),
    ] = Timeouts().total,
    master: Master = DEFAULT_MASTER,
) -> None:
    """Read all tables of each name server at one revision and write them as Parquet; all or nothing."""
    try:
        endpoints = parse_endpoints(namesrv)
    except ValueError as error:
        _exit_with(f"--namesrv: {error}", EXIT_BAD_INPUT)
    try:
        ensure_java_home()
        store = RouteStore.create(out)
        _say(f"starting Spark on {master} ...")
        with spark_session(master) as spark:
            names = ", ".join(str(endpoint) for endpoint in endpoints)
            _say(f"reading {len(endpoints)} name server{'s' if len(endpoints) > 1 else ''}: {names} ...")
            result = ingest(spark, endpoints, store, Timeouts(total=timeout))
    except (JavaNotFoundError, SparkStartError, StoreError) as error:
        _exit_with(str(error), EXIT_BAD_INPUT)
    except IngestError as error:
        _exit_with(str(error), EXIT_FAILED)
    rows = ", ".join(f"{count:,} {table}" for table, count in result.rows.items())
    _say(f"wrote ingest {result.ingest_id} to {out}: rows of {rows}")


@app.command("report")
def report_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that ingest wrote to.")],
    master: Master = DEFAULT_MASTER,
) -> None:
    """Print what the latest ingest brought, and where the name servers differ."""
    try:
        store = RouteStore.open(folder)
        store.latest_ingest_id()
        ensure_java_home()
        _say(f"starting Spark on {master} ...")
        with spark_session(master) as spark:
            _say(f"comparing the name servers of {folder} ...")
            comparison = compare_latest(spark, store)
    except (JavaNotFoundError, SparkStartError, StoreError) as error:
        _exit_with(str(error), EXIT_BAD_INPUT)
    except ComparisonError as error:
        _exit_with(str(error), EXIT_FAILED)
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    print_report(comparison, Console(width=width, markup=False, highlight=False, emoji=False))


def main() -> None:
    """Runs the program."""
    app()


def _say(progress: str) -> None:
    """Progress goes to standard error: the report alone is the output."""
    typer.echo(f"route-pipeline: {progress}", err=True)


def _exit_with(message: str, code: int) -> NoReturn:
    typer.echo(f"route-pipeline: {message}", err=True)
    raise typer.Exit(code)
