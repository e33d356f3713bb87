"""The printed report on the name servers, as tables for people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark.sql import Row
from rich.console import Console
from rich.table import Table

from route_pipeline.reports.comparison import Comparison, Difference, NamesrvSummary, TableDifferences


def print_report(comparison: Comparison, console: Console) -> None:
    """Prints what is known of each name server, and where they differ.

    Args:
        comparison: What to print.
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
