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
from route_pipeline.warm_up import start_warm_up

SMALL_TOPICS = 30
WORKLOAD = f"{SMALL_TOPICS} topics of one broker, read by a Spark that is up"
AGAIN = 5

_Figures = Iterator[tuple[str, float]]


def cold(endpoint: Endpoint) -> _Figures:
    """In a Spark that is up and was not warmed up."""
    with spark_session("local[2]", QUICK_START, warm_up=False) as spark:
        spark.range(1).count()
        yield "first read, not warmed up", _read(spark, endpoint)


def warmed(endpoint: Endpoint) -> _Figures:
    """In a Spark that is up, once the warm-up is over."""
    with spark_session("local[2]", QUICK_START, warm_up=False) as spark:
        spark.range(1).count()
        with timed() as seconds:
            start_warm_up(spark).join()
        yield "the warm-up", seconds[0]
        yield "first read", _read(spark, endpoint)
        for _ in range(AGAIN):
            yield "read again", _read(spark, endpoint)


def at_once(endpoint: Endpoint) -> _Figures:
    """In a Spark that is asked to read before the warm-up is over."""
    return _from_nothing(endpoint, warm_up=True)


def at_once_cold(endpoint: Endpoint) -> _Figures:
    """The same where there is none."""
    return _from_nothing(endpoint, warm_up=False)


WAYS = {way.__name__: way for way in (cold, warmed, at_once, at_once_cold)}


def _from_nothing(endpoint: Endpoint, *, warm_up: bool) -> _Figures:
    """Seconds of a session's start, and from there to the first rows."""
    name = "with a warm-up" if warm_up else "without a warm-up"
    with timed() as both:
        with timed() as started:
            spark = spark_session("local[2]", QUICK_START, warm_up=warm_up)
        _read(spark, endpoint)
    spark.stop()
    yield f"spark_session() {name}", started[0]
    yield f"spark_session() {name} and a read at once", both[0]


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
