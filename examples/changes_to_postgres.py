"""Every change of name servers in a table of PostgreSQL, each once: a stream of Spark's, foreachBatch, and psql's COPY.

::

    python examples/changes_to_postgres.py 10.0.0.1:9876 'host=db.example dbname=routes' /data/checkpoint

Needs Spark (``pip install -e '.[route-pipeline]'`` in a clone) and ``psql`` on the driver; no JDBC driver. A batch
is one transaction. If the program is killed between that and the note that Spark makes of the batch, Spark hands it
over again, and its rows are there already: the primary key sees to it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType

import route_pipeline
from route_pipeline.schemas import BOOLEAN, CHANGE_COLUMNS, INTEGER, LONG, TIMESTAMP, Column

TYPES = {INTEGER: "integer", LONG: "bigint", BOOLEAN: "boolean", TIMESTAMP: "timestamptz"}
"""Types of columns; all others are text."""
KEY = "namesrv, epoch, revision, table_name, key, from_snapshot, op"
APPEND = """
CREATE TEMPORARY TABLE staged (LIKE changes);
\\copy staged FROM '{rows}' WITH (FORMAT csv, HEADER true)
INSERT INTO changes SELECT * FROM staged ON CONFLICT DO NOTHING;
"""
COPY_SECONDS = 600


def create_table() -> str:
    """The table's definition, with the columns of the data source."""
    columns = ", ".join(map(_definition, CHANGE_COLUMNS))
    return f"CREATE TABLE IF NOT EXISTS changes ({columns}, PRIMARY KEY ({KEY}));"


def append_to(database: str) -> Callable[[DataFrame, int], None]:
    """A function for foreachBatch that appends rows that are not there yet.

    Args:
        database: A connection string of PostgreSQL's, such as ``host=db.example dbname=routes``.
    """

    def append(batch: DataFrame, _batch_id: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            rows = Path(folder, "rows.csv")
            arrays = [field.name for field in batch.schema if isinstance(field.dataType, ArrayType)]
            flat = batch.withColumns({name: F.to_json(name) for name in arrays})  # CSV knows no arrays
            pyarrow.csv.write_csv(flat.toArrow(), rows)
            run(database, APPEND.format(rows=rows))

    return append


def run(database: str, script: str) -> str:
    """Runs a script in one transaction; what it said."""
    command = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
    done = subprocess.run(  # noqa: S603
        [*command, "--single-transaction", "--dbname", database],
        input=script,
        capture_output=True,
        text=True,
        timeout=COPY_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"psql: {done.stderr.strip()}")
    return done.stdout.strip()


def copy_changes(spark: SparkSession, endpoints: str, database: str, checkpoint: str) -> None:
    """Appends all that there is now."""
    run(database, create_table())
    changes = spark.readStream.format("namesrv").options(endpoints=endpoints, table="changes").load()
    writer = changes.writeStream.foreachBatch(append_to(database)).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def _definition(column: Column) -> str:
    return f"{column.name} {TYPES.get(column.type, 'text')}{'' if column.nullable else ' NOT NULL'}"


if __name__ == "__main__":
    with route_pipeline.spark_session() as session:
        copy_changes(session, *sys.argv[1:4])
