"""The tables of the pipeline for Arrow, which carries the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

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


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of a table's record batches. Raises KeyError if there is no such table."""
    return pa.schema(
        [pa.field(column.name, _TYPES[column.type], nullable=column.nullable) for column in schemas.columns_of(table)]
    )


def batch_of(
    table: str, common: Mapping[str, Any], own: Sequence[Mapping[str, Any]] | Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """Rows of a table: columns that all have in common, and their own, as rows or as arrays. The rest is null."""
    schema = arrow_schema(table)
    if isinstance(own, Mapping):
        arrays, count = own, len(next(iter(own.values())))
    else:
        named, count = {name for row in own for name in row}, len(own)
        arrays = {
            field.name: pa.array([row.get(field.name, common.get(field.name)) for row in own], field.type)
            for field in schema
            if field.name in named
        }
    columns = [
        arrays[field.name] if field.name in arrays else pa.repeat(pa.scalar(common.get(field.name), field.type), count)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
