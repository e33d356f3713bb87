"""The numbers of the report: the name servers as the log knows them, the last day, and counts over time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from route_pipeline.questions import Questions, Row

SHOWN = 15
"""Most disagreements that are listed."""

Series = dict[str, list[tuple[datetime, int]]]
"""Points of a line by name server."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """What the report shows. Times are UTC. ``sql/report.sql`` has the lists of the last day."""

    until: datetime  # when the log was written last; the last day ends there
    namesrvs: list[Row]
    """By name: epoch, revision, ingested_at, lost, known_from, known_to, and counts of topics, queue_rows, brokers."""
    open_disagreements: int  # disagreements that last, by the time of the ingest
    disagreements: list[Row]  # the oldest of them: since, table_name, key, have and lack
    changed: list[Row]
    latest: list[Row]
    flaps: list[Row]


@dataclass(frozen=True, slots=True)
class Charts:
    """What the report shows over time, by the clock of each name server."""

    over_time: dict[str, Series]  # topics, write queues and brokers over time
    churn: list[Row]  # names and numbers: broker groups whose rows changed most often
    removals: list[Row]  # names and numbers: ends that were no change, by table and reason


def collect_report(asked: Questions) -> ReportData:
    (written,) = asked.ask("select max(ingested_at) as until from log")
    asked.divergence("ingest")
    asked.run("report.sql")
    namesrvs = asked.name_servers()
    lasting = asked.ask("from disagreements where until is null order by since, table_name, key")
    counts = {row["namesrv"]: row for row in asked.ask("from counts")}
    nothing = {"topics": 0, "queue_rows": 0, "brokers": 0}
    return ReportData(
        until=written["until"],
        namesrvs=[nothing | counts.get(row["namesrv"], {}) | row for row in namesrvs],
        open_disagreements=len(lasting) if len(namesrvs) > 1 else 0,
        disagreements=lasting[:SHOWN],
        changed=asked.ask("from changed"),
        latest=asked.ask("from latest"),
        flaps=asked.ask("from flaps"),
    )


def collect_charts(asked: Questions) -> Charts:
    """Computes what :func:`collect_report`, which is called before, leaves out."""
    over_time: dict[str, Series] = {}
    for row in asked.ask("from over_time"):
        lines = over_time.setdefault(row["what"], {})
        lines.setdefault(row["namesrv"], []).append((row["moment"], row["value"]))
    return Charts(over_time, asked.ask("from churn"), asked.ask("from removals"))


def sides_of(disagreement: Row) -> str:
    """Which name servers have the row, in words."""
    have, lack = disagreement["have"], disagreement["lack"]
    if not lack:
        return f"{', '.join(have)}, not all the same"
    return f"{', '.join(have) or 'nobody'}; not {', '.join(lack)}"
