"""The tables of the pipeline, each defined once, in the words in which Spark declares them: DDL.

Neither Spark nor Arrow is imported here: to check options and to declare a table must not wait for them.
``arrow_schemas`` has the same tables for Arrow, which carries the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

STRING = "STRING"
INTEGER = "INT"
LONG = "BIGINT"
BOOLEAN = "BOOLEAN"
STRINGS = "ARRAY<STRING>"
LONGS = "ARRAY<BIGINT>"
ADDRESSES = "ARRAY<STRUCT<broker_id: BIGINT, broker_addr: STRING>>"
TIMESTAMP = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    type: str
    """One of the types above."""
    comment: str
    """Its meaning, with the unit."""
    nullable: bool = False
    """Spark accepts a batch only if this, too, agrees with the declared schema."""

    @property
    def ddl(self) -> str:
        not_null = "" if self.nullable else " NOT NULL"
        return f"{self.name} {self.type}{not_null} COMMENT '{self.comment}'"


ORIGIN_COLUMNS = (
    Column("namesrv", STRING, "name that the name server gives itself"),
    Column("epoch", STRING, "process lifetime of the name server; later ones of the same name server sort after it"),
    Column("revision", LONG, "revision of the name server at which its tables were read"),
    Column("taken_at", TIMESTAMP, "when the snapshot was taken, by the clock of the name server"),
)
"""The origin of a row: the first columns of the tables of a snapshot."""

TOPIC_QUEUES = "topic_queues"
BROKERS = "brokers"
CLUSTERS = "clusters"
CHANGES = "changes"

ROW_COLUMNS = {
    TOPIC_QUEUES: (
        Column("topic", STRING, "topic name; the option topics reads fewer"),
        Column("cluster_name", STRING, "cluster of the broker group"),
        Column("broker_name", STRING, "broker group that holds the queues"),
        Column("read_queue_nums", INTEGER, "queues that can be read from"),
        Column("write_queue_nums", INTEGER, "queues that can be written to"),
        Column("perm", INTEGER, "permission bits in force: read 4, write 2, inherit 1"),
        Column("topic_sys_flag", INTEGER, "flag bits: 1 unit, 2 unit subscription"),
        Column(
            "reported_perm", INTEGER, "what the broker reports, where an operator changed it; else null", nullable=True
        ),
        Column(
            "static_mapping", STRING, "of a static topic: the queues of the group as JSON; else null", nullable=True
        ),
    ),
    BROKERS: (
        Column("cluster_name", STRING, "cluster of the broker"),
        Column("broker_name", STRING, "group of the broker: a master and its slaves"),
        Column("broker_id", LONG, "0 is the master, above 0 a slave"),
        Column("broker_addr", STRING, "where clients reach the broker, host:port"),
        Column("zone_name", STRING, "zone of the group; null if its brokers named none", nullable=True),
        Column("enable_acting_master", BOOLEAN, "may the lowest slave stand in; null if not said", nullable=True),
        Column("unconfirmed", BOOLEAN, "known from a file or held by the guard, not from its own word since"),
        Column("live", BOOLEAN, "has a row in the table of live brokers; if not, nothing is known of its registration"),
        Column("ha_server_addr", STRING, "where slaves replicate from; null if it named none", nullable=True),
        Column("data_version_timestamp_millis", LONG, "when its topic table was made, ms since 1970", nullable=True),
        Column("data_version_counter", LONG, "number of changes of its topic table", nullable=True),
        Column("data_version_state_version", LONG, "raised by a change of role", nullable=True),
        Column("last_update", TIMESTAMP, "when it was last heard of, by the clock of the name server", nullable=True),
        Column("generation", LONG, "number of its last accepted registration at this name server", nullable=True),
        Column("has_channel", BOOLEAN, "does the end of a channel remove it at once", nullable=True),
        Column("labels", STRINGS, "its labels as key=value, sorted", nullable=True),
        Column("filter_servers", STRINGS, "addresses of its filter servers, host:port"),
    ),
    CLUSTERS: (
        Column("cluster_name", STRING, "cluster"),
        Column("broker_name", STRING, "one broker group of the cluster"),
    ),
}
"""The columns of each table of a snapshot after those of the origin."""

_ROWS = {column.name: replace(column, nullable=True) for columns in ROW_COLUMNS.values() for column in columns}
"""The same by name, as table ``changes`` has them: null in rows of another table."""

CHANGE_COLUMNS = (
    Column("namesrv", STRING, "name that the name server gives itself; its address where it never answered"),
    Column("epoch", STRING, "process lifetime of the name server; later ones of the same name server sort after it"),
    Column("revision", LONG, "revision of the name server that the row is of"),
    Column("changed_at", TIMESTAMP, "when it changed, or when the snapshot was taken, by the clock of the name server"),
    Column(
        "table_name", STRING, "topic_queues, broker_groups, brokers, clusters, filter_servers, or reads: of the reader"
    ),
    Column("op", STRING, "put or remove; in reads: snapshot, changes, lost, back, hole or kept"),
    Column("from_snapshot", BOOLEAN, "row of a snapshot: what was there, not what changed"),
    Column("key", STRING, "key within the table: names joined by /"),
    *(_ROWS[name] for name in ("topic", "cluster_name", "broker_name", "broker_id", "broker_addr")),
    *(_ROWS[name] for name in ("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag", "reported_perm")),
    Column("broker_addrs", ADDRESSES, "the brokers of a group, by id", nullable=True),
    *(_ROWS[name] for name in ("zone_name", "enable_acting_master")),
    Column("unconfirmed_broker_ids", LONGS, "brokers of a group that are known from a file or held", nullable=True),
    *(_ROWS[name] for name in ("ha_server_addr", "data_version_timestamp_millis", "data_version_counter")),
    *(_ROWS[name] for name in ("data_version_state_version", "generation", "has_channel")),
    Column("heartbeat_timeout_millis", LONG, "how long the broker may be silent, ms", nullable=True),
    *(_ROWS[name] for name in ("unconfirmed", "labels", "filter_servers")),
    Column("reason", STRING, "why it was removed, or why a name server was lost", nullable=True),
    Column("after_revision", LONG, "in reads: the changes are those after this revision", nullable=True),
    _ROWS["static_mapping"],
    Column("warm", BOOLEAN, "in reads, of a snapshot: if false, rows may be missing", nullable=True),
    Column("snapshot", LONG, "number of the snapshot of this name server that the row is of, or follows"),
)
"""The table of changes. Rows are unique by namesrv, epoch, revision, table_name, key and from_snapshot."""

READS = "reads"
"""Value of ``table_name`` for rows in which the reader says what it read, or could not."""


def columns_of(table: str) -> tuple[Column, ...]:
    """All columns of a table. Raises KeyError if there is no such table."""
    return CHANGE_COLUMNS if table == CHANGES else (*ORIGIN_COLUMNS, *ROW_COLUMNS[table])


def spark_ddl(table: str) -> str:
    """The schema of a table for Spark, with the comments. Raises KeyError."""
    return ", ".join(column.ddl for column in columns_of(table))
