"""The tables of the pipeline, each defined once: for Arrow, which carries the rows, and for Spark, which declares them.

No Spark is imported here: a Spark schema is its DDL text.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

STRING = pa.string()
INTEGER = pa.int32()
LONG = pa.int64()
BOOLEAN = pa.bool_()
STRINGS = pa.list_(pa.field("element", pa.string()))
TIMESTAMP = pa.timestamp("us", tz="UTC")

_DDL_TYPES = {
    STRING: "STRING",
    INTEGER: "INT",
    LONG: "BIGINT",
    BOOLEAN: "BOOLEAN",
    STRINGS: "ARRAY<STRING>",
    TIMESTAMP: "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    type: pa.DataType
    comment: str
    """What it means, with its unit."""
    nullable: bool = False
    """Spark takes a batch only if it agrees with the declared schema in this, too."""

    @property
    def arrow_field(self) -> pa.Field:
        """The column for Arrow."""
        return pa.field(self.name, self.type, nullable=self.nullable)

    def ddl(self, separator: str = " ") -> str:
        """The column for Spark; inside a STRUCT the separator of name and type is a colon."""
        not_null = "" if self.nullable else " NOT NULL"
        return f"{self.name}{separator}{_DDL_TYPES[self.type]}{not_null} COMMENT '{self.comment}'"


ORIGIN_COLUMNS = (
    Column("namesrv", STRING, "name that the name server gives itself"),
    Column("epoch", STRING, "process lifetime of the name server; later ones of the same name server sort after it"),
    Column("revision", LONG, "revision of the name server at which its tables were read"),
    Column("taken_at", TIMESTAMP, "when the snapshot was taken, by the clock of the name server"),
)
"""Where a row comes from: the first columns of every table."""

TOPIC_QUEUES = "topic_queues"
BROKERS = "brokers"
CLUSTERS = "clusters"
SNAPSHOTS = "snapshots"
WHOLE_SNAPSHOT = "whole_snapshot"

ROW_COLUMNS = {
    TOPIC_QUEUES: (
        Column("topic", STRING, "topic name"),
        Column("cluster_name", STRING, "cluster of the broker group"),
        Column("broker_name", STRING, "broker group that holds the queues"),
        Column("read_queue_nums", INTEGER, "queues that can be read from"),
        Column("write_queue_nums", INTEGER, "queues that can be written to"),
        Column("perm", INTEGER, "permission bits in force: read 4, write 2, inherit 1"),
        Column("topic_sys_flag", INTEGER, "flag bits: 1 unit, 2 unit subscription"),
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
        Column("filter_servers", STRINGS, "addresses of its filter servers, host:port"),
    ),
    CLUSTERS: (
        Column("cluster_name", STRING, "cluster"),
        Column("broker_name", STRING, "one broker group of the cluster"),
    ),
    SNAPSHOTS: (
        Column("endpoint", STRING, "address at which the name server was asked, host:port"),
        Column("topics", LONG, "number of topics"),
        Column("topic_queues", LONG, "rows of topic_queues"),
        Column("brokers", LONG, "rows of brokers"),
        Column("clusters", LONG, "rows of clusters"),
    ),
}
"""What each table has after the columns of the origin. ``snapshots`` has one row for each name server."""

TABLES = (*ROW_COLUMNS, WHOLE_SNAPSHOT)
"""Tables that can be read. ``whole_snapshot`` is all others in one: a struct column each, one not null in a row."""


def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of a table's record batches.

    Raises:
        KeyError: There is no such table.
    """
    fields = [column.arrow_field for column in ORIGIN_COLUMNS]
    if table == WHOLE_SNAPSHOT:
        fields += [pa.field(name, row_struct(name)) for name in ROW_COLUMNS]
    else:
        fields += [column.arrow_field for column in ROW_COLUMNS[table]]
    return pa.schema(fields)


def row_struct(table: str) -> pa.StructType:
    """The type of a table's column in ``whole_snapshot``.

    Raises:
        KeyError: There is no such table.
    """
    return pa.struct([column.arrow_field for column in ROW_COLUMNS[table]])


def spark_ddl(table: str) -> str:
    """The same schema for Spark, with the comments.

    Raises:
        KeyError: There is no such table.
    """
    columns = [column.ddl() for column in ORIGIN_COLUMNS]
    if table == WHOLE_SNAPSHOT:
        for name, struct in ROW_COLUMNS.items():
            columns.append(f"{name} STRUCT<{', '.join(column.ddl(': ') for column in struct)}>")
    else:
        columns += [column.ddl() for column in ROW_COLUMNS[table]]
    return ", ".join(columns)
