"""Formats of the log, and the versions of Spark that can write them: checked before anything is started."""

from __future__ import annotations

import os

import pyspark

PARQUET, DELTA = "parquet", "delta"
SINKS = (PARQUET, DELTA)

DELTA_PACKAGES = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
"""By release of Spark, the release of Delta Lake that was made for it and that our tests run."""


class SinkError(Exception):
    """The log cannot be kept in the format that was asked for; the text is one line and says what can be."""


def check_sink(sink: str, version: str = pyspark.__version__) -> None:
    """Checks that a format can be written by a Spark.

    Args:
        sink: One of :data:`SINKS`.

    Raises:
        SinkError: It is none, or no release of it supports this Spark: what was tried is in docs/pipeline.md.
    """
    if sink not in SINKS:
        raise SinkError(f"sink {sink!r} is not one of {', '.join(SINKS)}")
    if sink == DELTA and _release(version) not in DELTA_PACKAGES:
        raise SinkError(
            f"sink delta: no release of Delta Lake supports Spark {_release(version)}; "
            "sink parquet works, and sink delta with PySpark 4.2: pip install 'pyspark>=4.2,<4.3'"
        )


def session_settings(sink: str, jars: str | None, version: str = pyspark.__version__) -> dict[str, str]:
    """What Spark must be started with to write a format.

    Args:
        sink: One of :data:`SINKS`, checked.
        jars: Files with Delta Lake, separated by commas; None: Spark fetches it from Maven Central, unless spark-submit
            started Spark, which then has been told ``--packages``.
    """
    if sink != DELTA:
        return {}
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    if jars is not None:
        return settings | {"spark.jars": jars}
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return settings
    return settings | {"spark.jars.packages": DELTA_PACKAGES[_release(version)]}


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])
