"""Questions about the past: routes at a time, events, divergence, the latest state, and the last day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.history import CHANGED, COMPARED, KEY, as_of, current
from route_pipeline.log.protocol.state import LogState

# Answers to questions about the history, as rows for people.

MAX_EVENTS = 1_000
"""Most events that are fetched for one answer, the latest ones."""


@dataclass(frozen=True, slots=True)
class RouteAt:
    """Queues of a topic on one broker group, as one name server had them."""

    namesrv: str
    cluster_name: str
    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    broker_addrs: dict[int, str]
    """Addresses of the group by broker id; empty if the group was not known."""
    valid_from: datetime
    """Since when, by the clock of the name server, UTC."""


@dataclass(frozen=True, slots=True)
class Event:
    """A version of a row of a topic, of a group that has queues of it or of a broker there, and how it ended."""

    namesrv: str
    table_name: str
    key: str
    what: str
    """The row, short."""
    valid_from: datetime
    valid_to: datetime | None
    """None: it is still there."""
    end_reason: str | None


def route_at(versions: DataFrame, topic: str, at: datetime) -> list[RouteAt]:
    """A topic's route at a time, which has a time zone, as each name server had it by its own clock."""
    there = as_of(versions, at)
    queues = there.where((F.col("table_name") == "topic_queues") & (F.col("topic") == topic))
    groups = there.where(F.col("table_name") == "broker_groups").select(
        "namesrv", "cluster_name", "broker_name", F.col("broker_addrs").alias("addrs")
    )
    joined = queues.join(groups, ["namesrv", "cluster_name", "broker_name"], "left")
    rows = joined.withColumn("since", F.unix_micros("valid_from")).orderBy("namesrv", "cluster_name", "broker_name")
    return [
        RouteAt(
            namesrv=row["namesrv"],
            cluster_name=row["cluster_name"],
            broker_name=row["broker_name"],
            read_queue_nums=row["read_queue_nums"],
            write_queue_nums=row["write_queue_nums"],
            perm=row["perm"],
            broker_addrs={broker["broker_id"]: broker["broker_addr"] for broker in row["addrs"] or ()},
            valid_from=utc(row["since"]),
        )
        for row in rows.collect()
    ]


def events_of(versions: DataFrame, topic: str) -> list[Event]:
    """What happened to a topic, and to the groups that ever had queues of it and their brokers, oldest first."""
    queues = versions.where((F.col("table_name") == "topic_queues") & (F.col("topic") == topic))
    holders = queues.select("namesrv", "cluster_name", "broker_name").distinct()
    groups = versions.where(F.col("table_name").isin("broker_groups", "brokers"))
    groups = groups.join(holders, ["namesrv", "cluster_name", "broker_name"], "left_semi")
    found = queues.unionByName(groups)
    found = found.withColumn("began", F.unix_micros("valid_from")).withColumn("ended", F.unix_micros("valid_to"))
    latest = found.orderBy(F.desc("began"), F.desc("valid_from_revision"), "namesrv", "key").limit(MAX_EVENTS).collect()
    return [_event(row) for row in reversed(latest)]


def utc(micros: int) -> datetime:
    """A time from Spark in UTC; Spark itself would give it in the time zone of this machine."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


def _event(row: Row) -> Event:
    if row["table_name"] == "topic_queues":
        what = f"read {row['read_queue_nums']}, write {row['write_queue_nums']}, perm {row['perm']}"
    elif row["table_name"] == "brokers":
        role = "master" if row["broker_id"] == 0 else "slave"
        what = f"{role} {row['broker_id']}, topics of version {row['data_version_counter']}"
    else:
        what = ", ".join(f"{broker['broker_id']}={broker['broker_addr']}" for broker in row["broker_addrs"])
    return Event(
        namesrv=row["namesrv"],
        table_name=row["table_name"],
        key=row["key"],
        what=what,
        valid_from=utc(row["began"]),
        valid_to=None if row["ended"] is None else utc(row["ended"]),
        end_reason=row["end_reason"],
    )


# Divergence: where name servers disagreed, since when, for how long. They never talk, so some of it is normal.
#
# Times of two name servers are by two clocks. Nothing here compares the two clocks: each disagreement is given twice,
# in the wall times of the name servers and in the times at which the log saw it. :func:`clock_leads` gives the least
# distance between the clocks.

WALL_TIME, INGEST_TIME = "wall", "ingest"
"""By which clock: that of each name server, or that of the machine that wrote the log."""

_COLUMNS = {WALL_TIME: ("valid_from", "valid_to", "changed_at"), INGEST_TIME: ("seen_from", "seen_to", "ingested_at")}


def divergence(changes: DataFrame, versions: DataFrame, by: str = WALL_TIME) -> DataFrame:
    """The disagreements between name servers.

    A name server is compared from its first snapshot on. One that was lost keeps what was last known of it.

    Args:
        by: ``wall`` or ``ingest``.

    Returns:
        ``table_name``, ``key``, ``since``, ``until`` (null: they still disagree), ``seconds`` (null likewise), and
        ``present``, a map from name server to whether it had the key, or had it otherwise, when it began.
    """
    began, ended, first_seen = _COLUMNS[by]
    firsts = _first_known(changes, first_seen)
    names = sorted(row["namesrv"] for row in firsts.collect())
    content = F.xxhash64(F.to_json(F.struct(*COMPARED)))
    compared = versions.where(F.col("namesrv").isin(*names))
    events = reduce(
        DataFrame.unionByName,
        [
            compared.select("table_name", "key", "namesrv", F.col(began).alias("at"), content.alias("content")),
            # A version that follows at once begins at the same time and comes later in the order: it counts.
            compared.where(F.col("end_reason").isNotNull() & (F.col("end_reason") != "CHANGED")).select(
                "table_name", "key", "namesrv", F.col(ended).alias("at"), F.lit(0).cast("bigint").alias("content")
            ),
            _absent_at_first(compared, firsts),
        ],
    )
    # Of two events of one name server at one time, the presence counts and not the removal.
    events = events.groupBy("table_name", "key", "namesrv", "at").agg(
        F.max_by("content", F.col("content") != 0).alias("content")
    )
    return _disagreements(_states(events, names), names)


@dataclass(frozen=True, slots=True)
class Cause:
    """Disagreements about one broker that began for one cause."""

    cluster_name: str
    broker: str
    """Name of the broker group, else the address of the broker; empty for rows of a cluster."""
    cause: str
    """What happened where: a removal reason, CAME, CHANGED, FIRST_READ, or NOT_READ, and the name servers."""
    count: int
    lasting: int
    """How many of them last."""
    since: datetime
    """When the first one began, UTC."""
    longest_seconds: float | None
    """The longest one that ended. None: no one has ended."""


def divergence_causes(
    changes: DataFrame, versions: DataFrame, disagreements: DataFrame, by: str = WALL_TIME
) -> list[Cause]:
    """Sums disagreements up by broker and cause, the most frequent cause first.

    The cause is what began the disagreement. Where a name server was lost at that time, the cause is its loss:
    a difference to the others tells about the name server, and nothing about the broker.

    Args:
        disagreements: The rows of :func:`divergence` with the same ``by``.
    """
    events = _causes_of(versions, by)
    begun = disagreements.withColumnRenamed("since", "at")
    keys = versions.groupBy("table_name", "key").agg(
        F.first("cluster_name", ignorenulls=True).alias("cluster_name"),
        F.coalesce(F.first("broker_name", ignorenulls=True), F.first("broker_addr", ignorenulls=True)).alias("broker"),
    )
    rows = begun.join(events, ["table_name", "key", "at"], "left").join(keys, ["table_name", "key"], "left")
    # Few rows: name servers are lost seldom.
    lost = F.broadcast(_lost_times(changes, by))
    while_lost = lost.join(rows.select("at").distinct(), on=(F.col("at") > F.col("from")) & _before("at", "to"))
    unread = while_lost.groupBy("at").agg(F.sort_array(F.collect_set("namesrv")).alias("unread"))
    rows = rows.join(unread, "at", "left").withColumn(
        "cause",
        F.coalesce(
            F.concat(F.lit("NOT_READ: "), F.array_join("unread", ", ")),
            "cause",
            F.lit("FIRST_READ"),
        ),
    )
    summed = rows.groupBy(
        F.coalesce("cluster_name", F.lit("")).alias("cluster"), F.coalesce("broker", F.lit("")).alias("broker"), "cause"
    ).agg(
        F.count("*").alias("count"),
        F.count(F.when(F.col("until").isNull(), 1)).alias("lasting"),
        F.min(F.unix_micros("at")).alias("first"),
        F.max("seconds").alias("longest"),
    )
    return [
        Cause(
            row["cluster"],
            row["broker"],
            row["cause"],
            row["count"],
            row["lasting"],
            utc(row["first"]),
            row["longest"],
        )
        for row in summed.orderBy(F.desc("count"), "cluster", "broker", "cause").collect()
    ]


def _causes_of(versions: DataFrame, by: str) -> DataFrame:
    """What happened to a key at a time, and at which name servers, in words."""
    began, ended, _ = _COLUMNS[by]
    of_row = Window.partitionBy(*KEY).orderBy("valid_from_epoch", "valid_from_revision")
    follows = F.coalesce(F.lag("end_reason").over(of_row) == CHANGED, F.lit(False))
    key = ("table_name", "key", "namesrv")
    came = versions.select(*key, F.col(began).alias("at"), F.when(follows, CHANGED).otherwise("CAME").alias("what"))
    went = versions.where(F.col("end_reason").isNotNull() & (F.col("end_reason") != CHANGED))
    went = went.select(*key, F.col(ended).alias("at"), F.col("end_reason").alias("what"))
    each = came.unionByName(went).groupBy("table_name", "key", "at", "what")
    at_servers = each.agg(F.array_join(F.sort_array(F.collect_set("namesrv")), ", ").alias("where"))
    texts = at_servers.groupBy("table_name", "key", "at")
    return texts.agg(
        F.array_join(F.sort_array(F.collect_list(F.concat_ws(": ", "what", "where"))), "; ").alias("cause")
    )


def _lost_times(changes: DataFrame, by: str) -> DataFrame:
    """After when and before when nothing is known of each name server that was lost. With null it is still lost.

    Nothing is known after the last read before the loss. That time is the ingest's, whatever ``by`` is: good enough for
    a hint where the clocks differ.
    """
    _, _, at = _COLUMNS[by]
    reads = changes.where(F.col("table_name") == "reads")
    again = F.col("op").isin("back", "snapshot")
    in_order = Window.partitionBy("namesrv").orderBy("ingested_at", "epoch", "revision", again)
    reads = reads.withColumn(
        "to", F.min(F.when(again, F.col(at))).over(in_order.rowsBetween(1, Window.unboundedFollowing))
    )
    reads = reads.withColumn("from", F.coalesce(F.lag("ingested_at").over(in_order), at))
    return reads.where(F.col("op").isin("lost", "hole")).select("namesrv", "from", "to")


def _before(at: str, end: str) -> Column:
    return F.col(end).isNull() | (F.col(at) < F.col(end))


def clock_leads(changes: DataFrame) -> DataFrame:
    """How far the clock of each name server is ahead of this machine's at least, in seconds.

    Returns:
        ``namesrv`` and ``lead_seconds``: the largest lead of the time of a change over the time at which it was
        written here. Negative: there is no sign that the clock is ahead; the number is the shortest delay.
    """
    lead = F.unix_micros("changed_at") - F.unix_micros("ingested_at")
    own = changes.where(F.col("table_name") != "reads")
    return own.groupBy("namesrv").agg((F.max(lead) / 1_000_000).alias("lead_seconds"))


def _first_known(changes: DataFrame, column: str) -> DataFrame:
    """When each name server was first known: an empty one has no row but that of its snapshot."""
    known = changes.where(F.col("op").isin("put", "remove", "snapshot"))
    return known.groupBy("namesrv").agg(F.min(column).alias("first"))


def _absent_at_first(versions: DataFrame, firsts: DataFrame) -> DataFrame:
    """The absence of each key at each name server, from its first snapshot on: lacking a key is not unknown."""
    keys = versions.select("table_name", "key").distinct()
    absent = F.lit(0).cast("bigint").alias("content")
    return keys.crossJoin(F.broadcast(firsts)).select(
        "table_name", "key", "namesrv", F.col("first").alias("at"), absent
    )


def _states(events: DataFrame, names: list[str]) -> DataFrame:
    """The state of a key at every name server after each time at which it changed at one of them."""
    by_key = Window.partitionBy("table_name", "key").orderBy("at")
    wide = events.groupBy("table_name", "key", "at").pivot("namesrv", names).agg(F.first("content"))  # type: ignore[arg-type]
    says = [F.last(F.col(f"`{name}`"), ignorenulls=True).over(by_key).alias(name) for name in names]
    return wide.select("table_name", "key", "at", *says)


def _disagreements(states: DataFrame, names: list[str]) -> DataFrame:
    by_key = Window.partitionBy("table_name", "key").orderBy("at")
    said: Column = F.filter(F.array(*(F.col(f"`{name}`") for name in names)), lambda one: one.isNotNull())
    present = F.map_from_arrays(
        F.array(*(F.lit(name) for name in names)), F.array(*(F.col(f"`{name}`") != 0 for name in names))
    )
    states = states.withColumn("differ", F.size(F.array_distinct(said)) > 1).withColumn("present", present)
    turns = states.withColumn("before", F.lag("differ", 1, False).over(by_key))
    turns = turns.where(F.col("differ") != F.col("before"))
    turns = turns.withColumn("until", F.lead("at").over(by_key))
    seconds = (F.unix_micros("until") - F.unix_micros("at")) / 1_000_000
    return turns.where("differ").select(
        "table_name", "key", F.col("at").alias("since"), "until", seconds.alias("seconds"), "present"
    )


# The name servers as the log knows them, and where they disagree.

SHOWN = 15
"""Rows of a list."""


@dataclass(frozen=True, slots=True)
class NamesrvSummary:
    """What is known of one name server."""

    namesrv: str
    """Name that it gives itself."""
    epoch: str
    """Its process lifetime."""
    revision: int
    """Revision of its tables."""
    ingested_at: datetime
    """When that was written to the log, UTC."""
    lost: bool
    """Whether it did not answer when it was last asked: the numbers are from before."""
    topics: int
    queue_rows: int
    """Number of pairs of a topic and a broker group."""
    brokers: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A row that name servers do not agree on."""

    since: datetime
    """By the time of the ingest, UTC."""
    table_name: str
    key: str
    have: tuple[str, ...]
    """Name servers that had it when it began."""
    lack: tuple[str, ...]
    """Name servers that did not. None: they have it, but otherwise."""

    @property
    def sides(self) -> str:
        """Which name servers have the row, in words."""
        if not self.lack:
            return f"{', '.join(self.have)}, not all the same"
        return f"{', '.join(self.have) or 'nobody'}; not {', '.join(self.lack)}"


@dataclass(frozen=True, slots=True)
class LatestState:
    """The name servers as the log knows them."""

    namesrvs: list[NamesrvSummary]
    """By name."""
    open_disagreements: int
    """Disagreements that last, by the time of the ingest."""
    disagreements: list[Disagreement]
    """The oldest of them."""


def latest_state(state: LogState, changes: DataFrame, versions: DataFrame) -> LatestState:
    """Computes it. The history is read several times, so it should be cached."""
    namesrvs = _namesrvs(state, current(versions))
    if len(namesrvs) < 2:
        return LatestState(namesrvs, 0, [])
    lasting = divergence(changes, versions, INGEST_TIME).where("until IS NULL").cache()
    try:
        return LatestState(namesrvs, lasting.count(), _oldest(lasting))
    finally:
        lasting.unpersist()


def _namesrvs(state: LogState, rows: DataFrame) -> list[NamesrvSummary]:
    """Counts the rows, and starts from what was read: an empty name server has no rows."""
    queues = F.col("table_name") == "topic_queues"
    counted = rows.groupBy("namesrv").agg(
        F.countDistinct(F.when(queues, F.col("topic"))).alias("topics"),
        F.count(F.when(queues, 1)).alias("queue_rows"),
        F.count(F.when(F.col("table_name") == "brokers", 1)).alias("brokers"),
    )
    counts = {name: numbers for name, *numbers in counted.collect()}
    return [
        NamesrvSummary(
            name,
            summary.epoch,
            summary.revision,
            summary.ingested_at,
            name in state.lost,
            *counts.get(name, (0, 0, 0)),
        )
        for name, summary in sorted(state.known.items())
        if summary.epoch
    ]


def _oldest(lasting: DataFrame) -> list[Disagreement]:
    found = []
    rows = lasting.withColumn("began", F.unix_micros("since")).orderBy("began", "table_name", "key")
    for row in rows.limit(SHOWN).collect():
        # Null: not read by then.
        have, lack = (
            tuple(sorted(name for name, has in row["present"].items() if has is wanted)) for wanted in (True, False)
        )
        found.append(Disagreement(utc(row["began"]), row["table_name"], row["key"], have, lack))
    return found


# The last day: what changed, and which brokers came and went.

FLAPS = 2
"""A broker that went away so often within a day at one name server flapped."""

CAME, WENT = "came", "went"
_DAY_MICROS = 24 * 60 * 60 * 1_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to a row, at the name servers where it did."""

    at: datetime
    """The last time, by the clock of the name server, UTC."""
    table_name: str
    key: str
    kind: str
    """came, changed or went."""
    reason: str
    """Why it went; empty otherwise."""
    namesrvs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flap:
    """A broker that went away again and again."""

    key: str
    times: int
    """How often, at the name server that saw it most often."""
    last: datetime
    """When last, UTC."""
    reasons: tuple[str, ...]
    namesrvs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LastDay:
    """The answers."""

    until: datetime
    """When the log was written last, UTC; the day ends there."""
    counts: list[tuple[str, int, int, int]]
    """Table, and how many of its rows came, changed and went; at several name servers counts once."""
    latest: list[Change]
    """The latest changes."""
    flaps: list[Flap]
    """Most frequent first."""


def last_day(changes: DataFrame, versions: DataFrame) -> LastDay:
    """Computes them from a log with at least one ingest."""
    until: int = changes.agg(F.max(F.unix_micros("ingested_at")).alias("until")).collect()[0]["until"]
    events = _events(changes, versions, until - _DAY_MICROS).cache()
    try:
        return LastDay(utc(until), _counts(events), _latest(events), _flaps(events))
    finally:
        events.unpersist()


def _events(changes: DataFrame, versions: DataFrame, since: int) -> DataFrame:
    """Comings, changes and goings after a time of the ingest's. What a first read finds did not come then."""
    firsts = changes.groupBy("namesrv").agg(F.min(F.unix_micros("ingested_at")).alias("first"))
    of_row = Window.partitionBy(*KEY).orderBy("valid_from_epoch", "valid_from_revision")
    follows = F.coalesce(F.lag("end_reason").over(of_row) == CHANGED, F.lit(False))
    began = versions.withColumn("follows", follows).join(F.broadcast(firsts), "namesrv")
    seen_from, seen_to = F.unix_micros("seen_from"), F.unix_micros("seen_to")
    came = began.where(~F.col("follows") & (seen_from > F.greatest(F.lit(since), "first")))
    ended = versions.where(F.col("end_reason").isNotNull() & (seen_to > since))
    of_change = F.col("end_reason") == CHANGED
    parts = [
        _part(came, "valid_from", F.lit(CAME), F.lit("")),
        _part(ended.where(of_change), "valid_to", F.lit("changed"), F.lit("")),
        _part(ended.where(~of_change), "valid_to", F.lit(WENT), F.col("end_reason")),
    ]
    return reduce(DataFrame.unionByName, parts)


def _part(rows: DataFrame, at: str, kind: Column, reason: Column) -> DataFrame:
    return rows.select(*KEY, F.unix_micros(at).alias("at"), kind.alias("kind"), reason.alias("why"))


def _counts(events: DataFrame) -> list[tuple[str, int, int, int]]:
    kinds = events.groupBy("table_name").pivot("kind", [CAME, "changed", WENT]).agg(F.countDistinct("key"))
    rows = kinds.orderBy("table_name").collect()
    return [(row["table_name"], row[CAME] or 0, row["changed"] or 0, row[WENT] or 0) for row in rows]


def _latest(events: DataFrame) -> list[Change]:
    of_all = events.groupBy("table_name", "key", "kind", "why").agg(
        F.max("at").alias("at"), F.sort_array(F.collect_set("namesrv")).alias("namesrvs")
    )
    rows = of_all.orderBy(F.desc("at"), "table_name", "key").limit(SHOWN).collect()
    return [
        Change(utc(row["at"]), row["table_name"], row["key"], row["kind"], row["why"], tuple(row["namesrvs"]))
        for row in rows
    ]


def _flaps(events: DataFrame) -> list[Flap]:
    went = events.where((F.col("table_name") == "brokers") & (F.col("kind") == WENT))
    by_namesrv = went.groupBy("namesrv", "key").agg(
        F.count("*").alias("times"), F.max("at").alias("at"), F.collect_set("why").alias("why")
    )
    by_broker = by_namesrv.where(F.col("times") >= FLAPS).groupBy("key")
    rows = by_broker.agg(
        F.max("times").alias("times"),
        F.max("at").alias("at"),
        F.sort_array(F.array_distinct(F.flatten(F.collect_list("why")))).alias("why"),
        F.sort_array(F.collect_set("namesrv")).alias("namesrvs"),
    )
    return [
        Flap(row["key"], row["times"], utc(row["at"]), tuple(row["why"]), tuple(row["namesrvs"]))
        for row in rows.orderBy(F.desc("times"), "key").limit(SHOWN).collect()
    ]
