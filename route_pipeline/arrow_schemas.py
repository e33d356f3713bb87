"""The tables of the pipeline for Arrow, which carries the rows."""

from __future__ import annotations

import pyarrow as pa

from route_pipeline import schemas

STRING = pa.string()
INTEGER = pa.int32()
LONG = pa.int64()
TIMESTAMP = pa.timestamp("us", tz="UTC")

_TYPES = {
    schemas.STRING: STRING,
    schemas.INTEGER: INTEGER,
    schemas.LONG: LONG,
    schemas.BOOLEAN: pa.bool_(),
    schemas.STRINGS: pa.list_(pa.field("element", STRING)),
    schemas.LONGS: pa.list_(pa.field("element", LONG)),
    schemas.ADDRESSES: pa.list_(
        pa.field("element", pa.struct([pa.field("broker_id", LONG), pa.field("broker_addr", STRING)]))
    ),
    schemas.TIMESTAMP: TIMESTAMP,
}


def arrow_field(column: schemas.Column) -> pa.Field:
    return pa.field(column.name, _TYPES[column.type], nullable=column.nullable)


def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of a table's record batches. Raises KeyError if there is no such table."""
    return pa.schema([arrow_field(column) for column in schemas.columns_of(table)])
