"""The numbers of the report: the name servers as the log knows them, the last day, and counts over time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from route_pipeline.questions import Clock, Questions, Row

SHOWN = 15
"""Rows of a list."""

POINTS = 400
"""Points of a line: a plot has pixels for no more."""

FLAPS = 2
"""A broker that was removed so often within a day at one name server flapped."""

CLOCKS: tuple[Clock, Clock] = ("wall", "ingest")
TOPICS, QUEUES, BROKERS = "topics", "write queues", "brokers"

Series = dict[str, list[tuple[datetime, int]]]
"""Points of a line by name server."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """What the report shows. Times are UTC."""

    until: datetime
    """When the log was written last; the last day ends there."""
    namesrvs: list[Row]
    """By name: epoch, revision, ingested_at, lost, known_from, known_to, and counts of topics, queue_rows, brokers."""
    open_disagreements: int
    """Disagreements that last, by the time of the ingest."""
    disagreements: list[Row]
    """The oldest of them: since, table_name, key, have and lack."""
    counts: list[Row]
    """Of the last day: table_name, and numbers of rows added, changed and removed. A change at several name servers
    counts once."""
    latest: list[Row]
    """The latest changes: moment, table_name, key, kind, why and namesrvs."""
    flaps: list[Row]
    """Brokers that were removed repeatedly: key, times, moment, why and namesrvs, most frequent first."""


@dataclass(frozen=True, slots=True)
class Charts:
    """What the report shows over time."""

    over_time: dict[str, Series]
    """Topics, write queues and brokers over time, by the clock of each name server."""
    churn: list[tuple[str, int]]
    """Broker groups whose rows changed most often, with the number of versions that ended."""
    removals: list[tuple[str, int]]
    """Table and reason, and number of ends that were no change, most frequent first."""
    convergence: dict[Clock, list[float]]
    """How long disagreements lasted, s, by clock, ascending."""


_COUNTS = """
with there as (
  select namesrv, table_name, topic from quiet
  union all select namesrv, table_name, topic from versions where end_reason is null
)
select namesrv, count(distinct topic) as topics, count(*) filter (table_name = 'topic_queues') as queue_rows,
  count(*) filter (table_name = 'brokers') as brokers
from there group by namesrv
"""
_OPEN = "from disagreements where until is null order by since, table_name, key"
_EVENTS = """
create or replace temporary table events as
with firsts as (
  select namesrv, min(ingested_at) as first from main.log group by namesrv
), marked as (
  select *, coalesce(lag(end_reason) over (
    partition by namesrv, topic, table_name, key order by valid_from_epoch, valid_from_revision) = 'CHANGED', false
  ) as follows from versions join firsts using (namesrv)
)
-- What a first read finds did not come then.
select namesrv, table_name, key, valid_from as moment, 'came' as kind, '' as why
from marked where not follows and seen_from > greatest(first, $until::timestamptz - interval 1 day)
union all
select namesrv, table_name, key, valid_to, case end_reason when 'CHANGED' then 'changed' else 'went' end,
  case end_reason when 'CHANGED' then '' else end_reason end
from versions where seen_to > $until::timestamptz - interval 1 day
"""
_DAY = """
select table_name, count(distinct key) filter (kind = 'came') as came,
  count(distinct key) filter (kind = 'changed') as changed, count(distinct key) filter (kind = 'went') as went
from events group by table_name order by table_name
"""
_LATEST = f"""
select max(moment) as moment, table_name, key, kind, why, list(distinct namesrv order by namesrv) as namesrvs
from events group by table_name, key, kind, why order by moment desc, table_name, key limit {SHOWN}
"""
_FLAPPED = f"""
with each as (
  select namesrv, key, count(*) as times, max(moment) as moment, list(distinct why) as why
  from events where table_name = 'brokers' and kind = 'went' group by namesrv, key having count(*) >= {FLAPS}
)
select key, max(times) as times, max(moment) as moment, list_sort(list_distinct(flatten(list(why)))) as why,
  list(namesrv order by namesrv) as namesrvs
from each group by key order by times desc, key limit {SHOWN}
"""
_STEPS = {
    QUEUES: """
      select namesrv, valid_from as moment, write_queue_nums as step from quiet where table_name = 'topic_queues'
      union all select namesrv, valid_from, write_queue_nums from versions where table_name = 'topic_queues'
      union all select namesrv, valid_to, -write_queue_nums from versions
        where table_name = 'topic_queues' and valid_to is not null
    """,
    BROKERS: """
      select namesrv, valid_from as moment, 1 as step from quiet where table_name = 'brokers'
      union all select namesrv, valid_from, 1 from versions where table_name = 'brokers'
      union all select namesrv, valid_to, -1 from versions where table_name = 'brokers' and valid_to is not null
    """,
    # Up when a topic comes to its first broker group, down when it has left its last.
    TOPICS: """
      select namesrv, moment, there::int - lag(there::int, 1, 0) over k as step
      from (
        select namesrv, topic, moment, sum(sum(step)) over (partition by namesrv, topic order by moment) > 0 as there
        from (
          select namesrv, topic, valid_from as moment, 1 as step from quiet where topic is not null
          union all select namesrv, topic, valid_from, 1 from versions where topic is not null
          union all select namesrv, topic, valid_to, -1 from versions where topic is not null and valid_to is not null
        ) group by namesrv, topic, moment
      ) window k as (partition by namesrv, topic order by moment)
    """,
}
_OVER_TIME = f"""
with steps as ({{steps}}), ends as (
  select min(moment) as first, greatest(epoch_us(max(moment)) - epoch_us(min(moment)), 1) as width from steps
), points as (
  select namesrv, (epoch_us(moment) - epoch_us(first)) * {POINTS} // width as point, max(moment) as moment,
    sum(step) as step
  from steps cross join ends group by namesrv, point
)
select namesrv, moment, sum(step) over (partition by namesrv order by point)::bigint as value
from points order by namesrv, point
"""
_CHURN = f"""
select broker_name as name, count(*) as number from versions
where end_reason is not null and broker_name is not null group by all order by number desc, name limit {SHOWN}
"""
_REMOVALS = f"""
select table_name || ': ' || end_reason as name, count(*) as number from versions
where end_reason <> 'CHANGED' group by all order by number desc, name limit {SHOWN}
"""


def collect_report(asked: Questions) -> ReportData:
    (written,) = asked.ask("select max(ingested_at) as until from log")
    asked.divergence("ingest")
    lasting = asked.ask(_OPEN) if len(asked.name_servers()) > 1 else []
    counts = {row["namesrv"]: row for row in asked.ask(_COUNTS)}
    nothing = {"topics": 0, "queue_rows": 0, "brokers": 0}
    asked.ask(_EVENTS, written)
    return ReportData(
        until=written["until"],
        namesrvs=[nothing | counts.get(row["namesrv"], {}) | row for row in asked.name_servers()],
        open_disagreements=len(lasting),
        disagreements=lasting[:SHOWN],
        counts=asked.ask(_DAY),
        latest=asked.ask(_LATEST),
        flaps=asked.ask(_FLAPPED),
    )


def collect_charts(asked: Questions) -> Charts:
    """Computes what :func:`collect_report` leaves out."""
    convergence = {
        clock: sorted(row["seconds"] for row in asked.divergence(clock) if row["seconds"] is not None)
        for clock in CLOCKS
    }
    over_time: dict[str, Series] = {}
    for what in (TOPICS, QUEUES, BROKERS):
        lines: Series = over_time.setdefault(what, {})
        for row in asked.ask(_OVER_TIME.format(steps=_STEPS[what])):
            lines.setdefault(row["namesrv"], []).append((row["moment"], row["value"]))
    return Charts(
        over_time=over_time,
        churn=[(row["name"], row["number"]) for row in asked.ask(_CHURN)],
        removals=[(row["name"], row["number"]) for row in asked.ask(_REMOVALS)],
        convergence=convergence,
    )


def sides_of(disagreement: Row) -> str:
    """Which name servers have the row, in words."""
    have, lack = disagreement["have"], disagreement["lack"]
    if not lack:
        return f"{', '.join(have)}, not all the same"
    return f"{', '.join(have) or 'nobody'}; not {', '.join(lack)}"
