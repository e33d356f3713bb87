"""A Spark job that appends every change of name servers to a route log, on one machine or on a cluster.

::

    python examples/routes_to_log.py 10.0.0.1:9876 s3://bucket/routes /data/routes-checkpoint

``deploy/spark/submit.sh`` submits it to a cluster. Without Spark, ``route-pipeline follow`` does the same. A log that
one of them began is continued by the other. Driver and executors share the checkpoint's folder.
"""

# ruff: noqa: T201  (a program: it prints)

from __future__ import annotations

import sys

import route_pipeline
from route_pipeline.spark_errors import SPARK_ERRORS, one_line


def main(endpoints: str, log: str, checkpoint: str) -> int:
    """Appends all that there is now; returns the exit code."""
    with route_pipeline.spark_session() as spark:
        source = spark.readStream.format("namesrv").option("endpoints", endpoints).option("table", "changes")
        writer = source.load().writeStream.format("namesrv_log").option("checkpointLocation", checkpoint)
        try:
            query = writer.trigger(availableNow=True).start(log)
            query.awaitTermination()
        except SPARK_ERRORS as error:
            print(f"{log}: {one_line(error)}", file=sys.stderr)
            return 1
        print(f"{sum(one['numInputRows'] for one in query.recentProgress)} rows to {log}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
