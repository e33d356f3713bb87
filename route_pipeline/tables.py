"""Answers as tables on a console. The console must not interpret markup: names are others' text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table

from route_pipeline.questions import Clock, Row
from route_pipeline.report_data import ReportData, sides_of

_CLOCKS: dict[Clock, str] = {"wall": "the clocks of the name servers", "ingest": "the time of the ingest"}


def print_report(data: ReportData, console: Console) -> None:
    """Prints the state of each name server in the log, and their disagreements."""
    table = _table(
        "Name servers",
        ("name server", "epoch", "revision", "known from (UTC)", "known to (UTC)", "topics", "queue rows", "brokers"),
    )
    for one in data.namesrvs:
        known = ["" if one[end] is None else _time(one[end]) for end in ("known_from", "known_to")]
        numbers = (f"{one[count]:,}" for count in ("topics", "queue_rows", "brokers"))
        known[1] += " (lost)" if one["lost"] else ""
        table.add_row(one["namesrv"], one["epoch"], f"{one['revision']:,}", *known, *numbers)
    console.print(table)
    if len(data.namesrvs) == 1:
        console.print("One name server: there is nothing to compare it with.")
    elif data.open_disagreements:
        table = _table(f"Disagreements: {data.open_disagreements:,}", ("since (UTC)", "table", "key", "had it"))
        for one in data.disagreements:
            table.add_row(_time(one["since"]), one["table_name"], one["key"], sides_of(one))
        console.print(table)
        if len(data.disagreements) < data.open_disagreements:
            console.print(f"(the oldest {len(data.disagreements)} of {data.open_disagreements:,} are shown)")
    else:
        console.print(f"No differences between the {len(data.namesrvs)} name servers.")


def print_routes(console: Console, topic: str, at: datetime, answers: Sequence[Row]) -> None:
    """Prints the route at each name server, then the ones without a route, and those that the log does not know."""
    headings = ("name server", "cluster", "broker", "addresses", "read", "write", "perm")
    table = _table(f"Route of {topic} at {_time(at)} (UTC)", headings)
    for one in answers:
        if one["answer"] == "route":
            brokers = one["broker_addrs"] or ()
            addresses = ", ".join(f"{each['broker_id']}={each['broker_addr']}" for each in brokers) or "not known"
            queues = (one[column] for column in ("read_queue_nums", "write_queue_nums", "perm"))
            table.add_row(one["namesrv"], one["cluster_name"], one["broker_name"], addresses, *map(str, queues))
    if table.row_count:
        console.print(table)
    for one in answers:
        if one["answer"] == "no route":
            console.print(f"{one['namesrv']} had no route of {topic} at {_time(at)} (UTC).")
        elif one["answer"] == "not known":
            known = f"from {_time(one['known_from'])} to {_time(one['known_to'])} (UTC), perhaps with gaps"
            console.print(f"{one['namesrv']}: not known at {_time(at)} (UTC). The log knows it {known}.")
    if not answers:
        console.print("Not known: the log has no snapshot of a name server.")


def print_events(console: Console, topic: str, events: Sequence[Row]) -> None:
    if not events:
        console.print(f"The log has nothing of a topic {topic}.")
        return
    headings = ("name server", "table", "key", "was", "from (UTC)", "to (UTC)", "ended by")
    table = _table(f"What happened to {topic}", headings)
    for event in events:
        end = "" if event["valid_to"] is None else _time(event["valid_to"])
        names = (event["namesrv"], event["table_name"], event["key"], _what(event))
        table.add_row(*names, _time(event["valid_from"]), end, event["end_reason"] or "still there")
    console.print(table)


def _what(event: Row) -> str:
    if event["table_name"] == "topic_queues":
        return f"read {event['read_queue_nums']}, write {event['write_queue_nums']}, perm {event['perm']}"
    if event["table_name"] == "brokers":
        role = "master" if event["broker_id"] == 0 else "slave"
        return f"{role} {event['broker_id']}, topics of version {event['data_version_counter']}"
    return ", ".join(f"{one['broker_id']}={one['broker_addr']}" for one in event["broker_addrs"])


def print_leads(console: Console, leads: Sequence[Row]) -> None:
    """Prints how far the clocks of the name servers are ahead at least."""
    for lead in leads:
        name, seconds = lead["namesrv"], lead["seconds"]
        if seconds > 0:
            console.print(f"The clock of {name} is ahead of the ingest's by {seconds:.3f} s at least.")
        else:
            console.print(f"{name}: changes reached the log {-seconds:.3f} s after their time at the least.")


def print_divergence(console: Console, found: Mapping[Clock, Sequence[Row]], limit: int, min_seconds: float) -> None:
    """Prints disagreements by each clock: by broker and cause, then each of them."""
    for clock, rows in found.items():
        if not rows:
            console.print(f"No disagreements of {min_seconds:g} s or longer by {_CLOCKS[clock]}.")
            continue
        _print_causes(console, clock, rows, limit)
        headings = ("table", "key", "since (UTC)", "until (UTC)", "seconds", "had it")
        table = _table(f"Disagreements of {min_seconds:g} s or longer by {_CLOCKS[clock]}: {len(rows):,}", headings)
        for row in rows[:limit]:
            until = "still" if row["until"] is None else _time(row["until"])
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.3f}"
            table.add_row(row["table_name"], row["key"], _time(row["since"]), until, seconds, sides_of(row))
        console.print(table)


def _print_causes(console: Console, clock: Clock, rows: Sequence[Row], limit: int) -> None:
    causes: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        causes[row["cluster_name"], row["broker"], row["cause"]].append(row)
    headings = ("cluster", "broker", "began with", "count", "last", "first since (UTC)", "longest seconds")
    table = _table(f"{len(rows):,} disagreements by {_CLOCKS[clock]}, by broker and cause", headings)
    frequent = sorted(causes.items(), key=lambda item: (-len(item[1]), item[0]))
    for names, of_cause in frequent[:limit]:
        lasting = sum(row["until"] is None for row in of_cause)
        longest = max((row["seconds"] for row in of_cause if row["seconds"] is not None), default=None)
        first = _time(min(row["since"] for row in of_cause))
        table.add_row(*names, f"{len(of_cause):,}", f"{lasting:,}", first, "" if longest is None else f"{longest:.3f}")
    console.print(table)
    if len(frequent) > limit:
        console.print(f"(the {limit} most frequent of {len(frequent):,} are shown)")


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _time(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
