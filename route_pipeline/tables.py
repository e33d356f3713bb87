"""Answers as tables on a console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.table import Table

from route_pipeline.queries import INGEST_TIME, WALL_TIME, Cause, Event, LatestState, RouteAt, utc


def print_report(latest: LatestState, console: Console) -> None:
    """Prints what is known of each name server, and where they disagree.

    The console must not interpret markup: names of topics and name servers are others' text.
    """
    headings = ("name server", "epoch", "revision", "ingested at (UTC)", "topics", "queue rows", "brokers")
    table = _table("Name servers", headings)
    for namesrv in latest.namesrvs:
        ingested_at = _time(namesrv.ingested_at) + (" (lost)" if namesrv.lost else "")
        numbers = (namesrv.topics, namesrv.queue_rows, namesrv.brokers)
        table.add_row(
            namesrv.namesrv, namesrv.epoch, f"{namesrv.revision:,}", ingested_at, *(f"{number:,}" for number in numbers)
        )
    console.print(table)
    if len(latest.namesrvs) == 1:
        console.print("One name server: there is nothing to compare it with.")
    elif latest.open_disagreements:
        table = _table(f"Disagreements: {latest.open_disagreements:,}", ("since (UTC)", "table", "key", "had it"))
        for one in latest.disagreements:
            table.add_row(_time(one.since), one.table_name, one.key, one.sides)
        console.print(table)
        if len(latest.disagreements) < latest.open_disagreements:
            console.print(f"(the oldest {len(latest.disagreements)} of {latest.open_disagreements:,} are shown)")
    else:
        console.print(f"No differences between the {len(latest.namesrvs)} name servers.")


def print_routes(console: Console, topic: str, at: datetime, routes: Sequence[RouteAt]) -> None:
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


_CLOCKS = {WALL_TIME: "the clocks of the name servers", INGEST_TIME: "the time of the ingest"}


def print_causes(console: Console, causes: Mapping[str, Sequence[Cause]], limit: int) -> None:
    """Prints how many disagreements each broker and cause has, by each clock; the most frequent first."""
    for by, summed in causes.items():
        count = sum(one.count for one in summed)
        if not count:
            console.print(f"No disagreements by {_CLOCKS[by]}.")
            continue
        headings = ("cluster", "broker", "began with", "count", "last", "first since (UTC)", "longest seconds")
        table = _table(f"{count:,} disagreements by {_CLOCKS[by]}, by broker and cause", headings)
        for one in summed[:limit]:
            longest = "" if one.longest_seconds is None else f"{one.longest_seconds:.3f}"
            numbers = (f"{one.count:,}", f"{one.lasting:,}", _time(one.since), longest)
            table.add_row(one.cluster_name, one.broker, one.cause, *numbers)
        console.print(table)
        if len(summed) > limit:
            console.print(f"(the {limit} most frequent of {len(summed):,} are shown)")


def print_divergence(console: Console, found: Mapping[str, DataFrame], leads: Sequence[Row], limit: int) -> None:
    """Prints disagreements, longest first, by each clock."""
    for lead in leads:
        seconds = lead["lead_seconds"]
        if seconds > 0:
            console.print(f"The clock of {lead['namesrv']} is ahead of the ingest's by {seconds:.3f} s at least.")
        else:
            console.print(f"{lead['namesrv']}: changes reached the log {-seconds:.3f} s after their time at the least.")
    for by, disagreements in found.items():
        rows = disagreements.withColumn("began", F.unix_micros("since")).withColumn("ended", F.unix_micros("until"))
        count = rows.count()
        lasting = F.col("until").isNull()
        table = _table(
            f"Disagreements by {_CLOCKS[by]}: {count:,}",
            ("table", "key", "since (UTC)", "until (UTC)", "seconds", "had it"),
        )
        for row in rows.orderBy(lasting.desc(), F.desc("seconds"), "began", "key").limit(limit).collect():
            until = "still" if row["ended"] is None else _time(utc(row["ended"]))
            seconds_text = "" if row["seconds"] is None else f"{row['seconds']:.3f}"
            had = ", ".join(f"{name}: {_had(value)}" for name, value in sorted(row["present"].items()))
            table.add_row(row["table_name"], row["key"], _time(utc(row["began"])), until, seconds_text, had)
        console.print(table)


def _had(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "not known"}[value]


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _time(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
