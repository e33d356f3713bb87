"""Every change of name servers as plain Parquet on S3, by Spark's own file sink: for who wants files and no route log.

::

    python examples/changes_to_s3.py 10.0.0.1:9876 s3a://bucket/changes

Needs ``pip install -e '.[route-pipeline]'`` in a clone. Spark fetches its connector for S3 from Maven Central, once:
19 MB, because of Amazon's library only the parts that it uses are taken, and not the bundle of half a gigabyte.
Credentials come from where Amazon's tools take them; ``AWS_ENDPOINT_URL`` names a store that is not Amazon's.

Spark's sink has each change once, for readers that go by its list, ``_spark_metadata``, as ``spark.read.parquet`` does.
Others may find files of a batch that was killed. One query at a time may write to a place: that is for you to see to.
"""

# ruff: noqa: T201  (a program: it prints)

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

import route_pipeline
from route_pipeline.spark_errors import SPARK_ERRORS, one_line

HADOOP = "3.5.0"
"""Of PySpark 4.2 and 4.3: that of ``hadoop-client-api-*.jar`` among Spark's jars. Another one's connector breaks."""
AMAZON = "2.35.4"
"""What that release of Hadoop was made with."""
PARTS = ("s3", "s3-transfer-manager", "sts")


def connector(environment: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for ``s3a://``."""
    packages = [f"org.apache.hadoop:hadoop-aws:{HADOOP}", *(f"software.amazon.awssdk:{one}:{AMAZON}" for one in PARTS)]
    settings = {
        "spark.jars.packages": ",".join(packages),
        "spark.jars.excludes": "software.amazon.awssdk:bundle",
    }
    if endpoint := environment.get("AWS_ENDPOINT_URL"):
        settings |= {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def append_changes(spark: SparkSession, endpoints: str, place: str) -> int:
    """Appends all that there is now.

    Args:
        spark: A session with the settings of ``connector``.
        endpoints: Addresses of name servers.
        place: Where the files go. Spark's note of how far it is lies beside it, in ``PLACE-checkpoint``.

    Returns:
        How many rows it read.
    """
    changes = spark.readStream.format("namesrv").options(endpoints=endpoints, table="changes").load()
    writer = changes.writeStream.format("parquet").option("checkpointLocation", f"{place}-checkpoint")
    query = writer.trigger(availableNow=True).start(place)
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def main(endpoints: str, place: str) -> int:
    """Runs it; returns the exit code."""
    with route_pipeline.spark_session(conf=connector(os.environ)) as spark:
        try:
            rows = append_changes(spark, endpoints, place.rstrip("/"))
        except SPARK_ERRORS as error:
            print(f"{place}: {one_line(error)}", file=sys.stderr)
            return 1
    print(f"{rows} rows to {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
