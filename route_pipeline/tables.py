"""Answers as tables on a console, and the history as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.table import Table

from route_pipeline.comparison import Comparison, Difference, NamesrvSummary, TableDifferences
from route_pipeline.log.data_files import folder_of
from route_pipeline.log.protocol.commits import HISTORY, HISTORY_MADE
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.writer import LogWriter
from route_pipeline.log.spark_files import write_files
from route_pipeline.queries import Event, RouteAt, utc

# The printed report on the name servers, as tables for people.


def print_report(comparison: Comparison, console: Console) -> None:
    """Prints what is known of each name server, and where they differ.

    Args:
        console: Where to. It must not interpret markup: names of topics and name servers are others' text.
    """
    console.print(_summary_table(comparison))
    for differences in comparison.differences:
        console.print(_difference_table(differences, comparison.namesrvs))
        if len(differences.shown) < differences.count:
            console.print(f"(the first {len(differences.shown)} of {differences.count:,} are shown)")
    if len(comparison.namesrvs) == 1:
        console.print("One name server: there is nothing to compare it with.")
    elif comparison.differences:
        found = ", ".join(f"{found.table} {found.count:,}" for found in comparison.differences)
        console.print(f"The name servers differ: {found}.")
    else:
        console.print(f"No differences between the {len(comparison.namesrvs)} name servers.")


def _summary_table(comparison: Comparison) -> Table:
    table = Table(title="Name servers", title_justify="left")
    table.add_column("name server")
    table.add_column("epoch")
    table.add_column("revision", justify="right")
    table.add_column("ingested at (UTC)")
    for heading in ("clusters", "topics", "queue rows", "read queues", "write queues", "brokers"):
        table.add_column(heading, justify="right")
    for namesrv in comparison.namesrvs:
        numbers = (
            namesrv.clusters,
            namesrv.topics,
            namesrv.queue_rows,
            namesrv.read_queues,
            namesrv.write_queues,
            namesrv.brokers,
        )
        table.add_row(
            namesrv.namesrv,
            namesrv.epoch,
            f"{namesrv.revision:,}",
            _time(namesrv.ingested_at) + (" (lost)" if namesrv.lost else ""),
            *(f"{number:,}" for number in numbers),
        )
    return table


def _difference_table(differences: TableDifferences, namesrvs: tuple[NamesrvSummary, ...]) -> Table:
    table = Table(title=f"Differences in {differences.table}", title_justify="left")
    for column in differences.shown[0].key:
        table.add_column(column, overflow="fold")
    for namesrv in namesrvs:
        table.add_column(namesrv.namesrv, overflow="fold")
    for difference in differences.shown:
        key = (str(value) for value in difference.key.values())
        table.add_row(*key, *(_cell(difference, namesrv.namesrv) for namesrv in namesrvs))
    return table


def _cell(difference: Difference, namesrv: str) -> str:
    """The value of one name server under a key: only the columns that differ, or whether it has the key at all."""
    mine = difference.values.get(namesrv)
    if mine is None:
        return "absent"
    others = list(difference.values.values())
    differing = [column for column in mine if any(other[column] != mine[column] for other in others)]
    return ", ".join(f"{column}={_text(mine[column])}" for column in differing) or "present"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"[{' '.join(map(_text, value))}]"
    if isinstance(value, Row):
        return f"{value['broker_id']}={value['broker_addr']}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _time(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


# Answers as tables: for people on a console, and the history as Parquet.


def write_history(log: RouteLog, versions: DataFrame) -> int:
    """Writes the history in place of the one that is there.

    Returns:
        The number of versions.

    Raises:
        StoreError: The log cannot be written to.
    """
    writer = LogWriter(log)
    log.store.make_folder(folder_of(HISTORY))
    files = write_files(versions, log.store, HISTORY, "", HISTORY_MADE)
    writer.append(HISTORY_MADE, add=files, remove=[file.path for file in writer.state.files_of(HISTORY)])
    return sum(file.rows for file in files)


def print_routes(console: Console, topic: str, at: datetime, routes: Sequence[RouteAt]) -> None:
    """Prints a topic's route at a time."""
    if not routes:
        console.print(f"No name server had a route of {topic} at {_time(at)} (UTC).")
        return
    headings = ("name server", "cluster", "broker", "addresses", "read", "write", "perm", "since (UTC)")
    table = _table(f"Route of {topic} at {_time(at)} (UTC)", headings)
    for route in routes:
        addresses = ", ".join(f"{broker_id}={addr}" for broker_id, addr in route.broker_addrs.items()) or "not known"
        queues = (route.read_queue_nums, route.write_queue_nums, route.perm)
        names = (route.namesrv, route.cluster_name, route.broker_name, addresses)
        table.add_row(*names, *map(str, queues), _time(route.valid_from))
    console.print(table)


def print_events(console: Console, topic: str, events: Sequence[Event]) -> None:
    """Prints what happened to a topic."""
    if not events:
        console.print(f"The log has nothing of a topic {topic}.")
        return
    headings = ("name server", "table", "key", "was", "from (UTC)", "to (UTC)", "ended by")
    table = _table(f"What happened to {topic}", headings)
    for event in events:
        end = "" if event.valid_to is None else _time(event.valid_to)
        names = (event.namesrv, event.table_name, event.key, event.what)
        table.add_row(*names, _time(event.valid_from), end, event.end_reason or "still there")
    console.print(table)


def print_divergence(console: Console, found: dict[str, DataFrame], leads: Sequence[Row], limit: int) -> None:
    """Prints disagreements, longest first, by each clock."""
    for lead in leads:
        seconds = lead["lead_seconds"]
        if seconds > 0:
            console.print(f"The clock of {lead['namesrv']} is ahead of the ingest's by {seconds:.3f} s at least.")
        else:
            console.print(f"{lead['namesrv']}: changes reached the log {-seconds:.3f} s after their time at the least.")
    for by, disagreements in found.items():
        rows = disagreements.withColumn("began", F.unix_micros("since")).withColumn("ended", F.unix_micros("until"))
        rows = rows.cache()
        count = rows.count()
        lasting = F.col("until").isNull()
        title = f"Disagreements by {'the clocks of the name servers' if by == 'wall' else 'the time of the ingest'}"
        table = _table(f"{title}: {count:,}", ("table", "key", "since (UTC)", "until (UTC)", "seconds", "had it"))
        for row in rows.orderBy(lasting.desc(), F.desc("seconds"), "began", "key").limit(limit).collect():
            until = "still" if row["ended"] is None else _time(utc(row["ended"]))
            seconds_text = "" if row["seconds"] is None else f"{row['seconds']:.3f}"
            had = ", ".join(f"{name}: {_had(value)}" for name, value in sorted(row["present"].items()))
            table.add_row(row["table_name"], row["key"], _time(utc(row["began"])), until, seconds_text, had)
        rows.unpersist()
        console.print(table)


def _had(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "not known"}[value]


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
