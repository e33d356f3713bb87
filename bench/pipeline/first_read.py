"""The first reads of one fresh Spark, in this process: Java starts once a process. ``bench.pipeline`` calls it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from pyspark.sql import SparkSession

from bench.figures import Sample, own_output
from bench.pipeline.sizes import timed
from groundwork.endpoints import Endpoint
from route_pipeline.session import QUICK_START, spark_session

SMALL_TOPICS = 30
WORKLOAD = f"{SMALL_TOPICS} topics of one broker, read by a Spark that is up"
AGAIN = 5

_Figures = Iterator[tuple[str, float]]


def up(endpoint: Endpoint) -> _Figures:
    """In a Spark that is up."""
    with spark_session("local[2]", QUICK_START) as spark:
        spark.range(1).count()
        yield "first read", _read(spark, endpoint)
        for _ in range(AGAIN):
            yield "read again", _read(spark, endpoint)


def at_once(endpoint: Endpoint) -> _Figures:
    """Seconds of a session's start, and from there to the first rows."""
    with timed() as both:
        with timed() as started:
            spark = spark_session("local[2]", QUICK_START)
        _read(spark, endpoint)
    spark.stop()
    yield "spark_session()", started[0]
    yield "spark_session() and a read at once", both[0]


WAYS = {way.__name__: way for way in (up, at_once)}


def _read(spark: SparkSession, endpoint: Endpoint) -> float:
    with timed() as seconds:
        routes = spark.read.format("namesrv").option("endpoints", str(endpoint)).load()
        assert len(routes.collect()) == SMALL_TOPICS
    return seconds[0]


def main() -> None:
    """Prints samples as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint", type=Endpoint.parse)
    parser.add_argument("way", choices=WAYS)
    arguments = parser.parse_args()
    output = own_output()
    for name, seconds in WAYS[arguments.way](arguments.endpoint):
        print(json.dumps(Sample(WORKLOAD, name, "s", seconds)), file=output)


if __name__ == "__main__":
    main()
