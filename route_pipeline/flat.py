"""The flat form of tables, for JDBC, CSV and others that know neither arrays nor structs: such columns become JSON."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType


def flat(rows: DataFrame) -> DataFrame:
    """The same rows and columns; those of arrays are JSON, as ``[{"broker_id":0,"broker_addr":"10.0.0.1:10911"}]``.

    Null stays null. It works on tables, on streams, in ``foreachBatch``, and on what is read back from a log.
    """
    return rows.select(
        *(
            F.to_json(field.name).alias(field.name) if isinstance(field.dataType, ArrayType) else F.col(field.name)
            for field in rows.schema
        )
    )
